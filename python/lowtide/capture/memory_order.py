"""How a tensor lies in memory, for calls that read it by strides of their own."""


def memory_order(tensor, sizes):
    """The dims of a fake tensor as they lie in memory, the outermost first, where its elements are all of its memory;
    None where that is not known."""
    left, order, numel = list(range(tensor.dim())), [], 1
    while left:
        ones = [dim for dim in left if sizes.are_equal(tensor.shape[dim], 1)]  # whatever their stride
        inner = ones or [dim for dim in left if sizes.are_equal(tensor.stride(dim), numel)]
        if not inner:
            return None
        left.remove(inner[-1])
        order.insert(0, inner[-1])
        numel = numel * tensor.shape[inner[-1]]
    return order if sizes.are_equal(tensor.untyped_storage().nbytes(), numel * tensor.element_size()) else None

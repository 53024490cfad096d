"""Lists and dicts among the arguments of a call, which forward may not change while it is traced."""


def containers_of(value):
    """(a list or dict, what identifies its items) of those in the arguments. Caches that a library passes on and
    returns are none."""
    if type(value) in (list, dict):
        yield value, list(items_of(value))
    if type(value) in (list, dict, tuple):
        for item in value.values() if type(value) is dict else value:
            yield from containers_of(item)


def items_of(container):
    if type(container) is dict:
        return ((key, id(item)) for key, item in container.items())
    return map(id, container)

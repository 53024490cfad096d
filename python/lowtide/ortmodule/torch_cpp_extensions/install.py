"""python -m lowtide.ortmodule.torch_cpp_extensions.install: what ORTModule's guide says to run once."""


def build_torch_cpp_extensions():
    print("lowtide has no extensions to build: it is ready as it is installed")


if __name__ == "__main__":
    build_torch_cpp_extensions()

def shared_temporal() -> str:
    raise NotImplementedError

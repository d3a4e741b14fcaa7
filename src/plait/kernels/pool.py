def empty(like, *shape):
    return like.new_empty(*shape)


def release():
    return 0

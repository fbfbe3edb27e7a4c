"""A run of swinq."""


class Run:
    """One command: arguments, files that it may write, and what its success must show, or that it must be refused.

    `outputs` are written by a success, and `keeps` may be by a failure. `maps`: they are files of feature maps, which must be whole.
    """

    def __init__(self, arguments, outputs=(), keeps=(), same_logits=False, refused=False, stdin=None, maps=False):
        self.arguments = [str(argument) for argument in arguments]
        self.outputs, self.keeps, self.same_logits, self.refused, self.stdin = set(outputs), set(keeps), same_logits, refused, stdin
        self.maps = maps

from pairstill.cli import main as cli

TINY = ["--towers.image", "test_efficientnet@random", "--towers.image-size", "32", "--towers.embed-dim", "16"]


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])

"""What every benchmark here asks of a training run, ours or PyTorch's: the two models' flags,
whether a result counts, and what an image costs."""
import math

SGD = ["--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9"]
MODEL_FLAGS = {"mlp": ["--model", "mlp", *SGD], "cnn": ["--model", "cnn"]}

# Floating-point operations of one image's training step: forward, the weights' gradients, and the
# gradients of all inputs but the image.
_MLP = 2 * (784 * 512 + 512 * 512 + 512 * 10)
_CNN = 2 * (26 * 26 * 32 * 9 + 24 * 24 * 64 * 288 + 9216 * 128 + 128 * 10)
OPERATIONS = {"mlp": 3 * _MLP - 2 * 784 * 512, "cnn": 3 * _CNN - 2 * 26 * 26 * 32 * 9}


def reason_not_to_count(result):
    """None if the run trained; else why its speed means nothing."""
    loss, accuracy = result.get("last_loss"), result.get("test_acc")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return f"loss {loss}"
    if not isinstance(accuracy, (int, float)) or accuracy < 0.85:
        return f"accuracy {accuracy}"
    return None

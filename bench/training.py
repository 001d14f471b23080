"""A training run, ours or PyTorch's: the models' flags, whether a result counts, and what an
image costs."""
import math

SGD = ["--optimizer", "sgd", "--lr", "0.1", "--momentum", "0.9"]
MODEL_FLAGS = {"mlp": ["--model", "mlp", *SGD], "cnn": ["--model", "cnn"],
               "speedrun": ["--model", "speedrun", "--optimizer", "adam"]}

# Multiply-adds of one image's forward pass, layer by layer.
LAYERS = {"mlp": {"fc1": 784 * 512, "fc2": 512 * 512, "fc3": 512 * 10},
          "cnn": {"conv1": 26 * 26 * 32 * 9, "conv2": 24 * 24 * 64 * 288, "fc1": 9216 * 128,
                  "fc2": 128 * 10},
          "speedrun": {"conv1": 24 * 24 * 16 * 25, "conv2": 10 * 10 * 32 * 144, "fc1": 800 * 128,
                       "fc2": 128 * 10}}
WINOGRAD = {"conv2": 4}  # F(4x4, 3x3): so many times fewer multiply-adds


def products(model, layer, way):
    """Of a layer: backward has the weights' gradients and the input's; nobody needs the image's."""
    return 2 if way == "backward" and layer != next(iter(LAYERS[model])) else 1


def operations(model, layers=None, ways=("forward", "backward"), saved=WINOGRAD):
    """Floating-point operations of one image's way through the layers, by default all of them.
    `saved`: how many times fewer an algorithm takes."""
    return sum(2 * LAYERS[model][layer] * products(model, layer, way) / saved.get(layer, 1)
               for layer in layers or LAYERS[model] for way in ways)


OPERATIONS = {model: operations(model, saved={}) for model in LAYERS}


def reason_not_to_count(result):
    """None if the run trained; else why its speed means nothing."""
    loss, accuracy = result.get("last_loss"), result.get("test_acc")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return f"loss {loss}"
    if not isinstance(accuracy, (int, float)) or accuracy < 0.85:
        return f"accuracy {accuracy}"
    return None

"""Takes a run's newest checkpoint to PyTorch, model and optimizer, and back.

torch_optimizer.py to-torch RUN OUT.pt
    writes {"model": model.state_dict(), "optimizer": optimizer.state_dict()}. The learning rate is
    the one that the run began with: a schedule is the caller's.
torch_optimizer.py from-torch IN.pt RUN [STEPS]
    makes what was saved so, STEPS [0] steps later in the same epoch, RUN's newest checkpoint."""
import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

OPTIMIZERS = {  # the class, and the tensors that it keeps of each parameter
    "sgd": (torch.optim.SGD, ["momentum_buffer"]),
    "adam": (torch.optim.Adam, ["exp_avg", "exp_avg_sq"]),
    "adamw": (torch.optim.AdamW, ["exp_avg", "exp_avg_sq"]),
    "adadelta": (torch.optim.Adadelta, ["square_avg", "acc_delta"]),
}


def fnv1a(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def header_of(path):
    """The bytes of a safetensors file before its tensors."""
    data = Path(path).read_bytes()
    return data[: 8 + int.from_bytes(data[:8], "little")]


def newest(run):
    """Its folder, its state.json, and the parameters' names in PyTorch's order."""
    folder = max(p for p in Path(run, "checkpoints").iterdir() if p.name.isdigit())
    header = json.loads(header_of(folder / "model.safetensors")[8:])
    names = sorted(set(header) - {"__metadata__"}, key=lambda name: header[name]["data_offsets"])
    return folder, json.loads((folder / "state.json").read_text()), names


def settings_of(run, state):
    """The arguments of PyTorch's optimizer. nesterov and betas stand in config.json alone."""
    config = Path(run, "config.json")
    settings = json.loads(config.read_text())["settings"] if config.exists() else {}
    given = {key: setting["value"] for key, setting in settings.items()}
    keys = {key: state[key] for key in ("lr", "weight_decay")}
    if state["optimizer"] == "sgd":
        keys |= {"momentum": state["momentum"], "nesterov": given.get("nesterov", False)}
    elif "adam_betas" in given and state["optimizer"].startswith("adam"):
        keys["betas"] = tuple(map(float, given["adam_betas"].split(",")))
    return keys


def to_torch(run, out):
    folder, state, names = newest(run)
    tensors, saved = (load_file(folder / f"{part}.safetensors") for part in ("model", "optimizer"))
    model = {name: torch.nn.Parameter(tensors[name]) for name in names}
    make, kinds = OPTIMIZERS[state["optimizer"]]
    optimizer = make(list(model.values()), **settings_of(run, state))
    for name, parameter in model.items():
        own = {kind: saved[f"{kind}.{name}"] for kind in kinds if f"{kind}.{name}" in saved}
        step = {"step": torch.tensor(float(state["optimizer_steps"]))}
        optimizer.state[parameter] = own if make is torch.optim.SGD else own | step
    torch.save({"model": tensors, "optimizer": optimizer.state_dict()}, out)


def from_torch(source, run, steps=0):
    folder, state, names = newest(run)
    given = torch.load(source, "cpu", weights_only=True)
    for key in ("step", "step_in_epoch", "optimizer_steps"):
        state[key] += steps
    parts = {"model": {name: given["model"][name].contiguous() for name in names}}
    parts["optimizer"] = {f"{kind}.{names[index]}": own[kind].contiguous()
                          for index, own in given["optimizer"]["state"].items()
                          for kind in OPTIMIZERS[state["optimizer"]][1] if own.get(kind) is not None}
    target = folder.parent / f"{state['step']:08d}"
    made = Path(f"{target}.tmp")
    made.mkdir()
    for part, tensors in parts.items():
        path = made / f"{part}.safetensors"
        save_file(tensors, path, {"format": "pt", "step": str(state["step"])})
        state[f"{part}_hash"] = fnv1a(header_of(path))
    text = json.dumps({k: v for k, v in state.items() if k != "hash"}, indent=2)[: -len("\n}")]
    (made / "state.json").write_text(f'{text},\n  "hash": "{fnv1a(text.encode())}"\n}}\n')
    shutil.rmtree(target, ignore_errors=True)
    made.rename(target)
    shutil.copy(target / "model.safetensors", Path(run, "model.safetensors"))


if len(sys.argv) == 4 and sys.argv[1] == "to-torch":
    to_torch(*sys.argv[2:])
elif len(sys.argv) in (4, 5) and sys.argv[1] == "from-torch":
    from_torch(*sys.argv[2:4], *map(int, sys.argv[4:]))
else:
    sys.exit(__doc__)

"""The files of configs/cluster/ that another program reads, as far as they can be looked at without
it: job.yaml (Kubernetes) and Dockerfile. Prints the arguments of the pods' program, one a line.
Run by tests/app/test_cluster_files.sh in configs/cluster/.
"""
import json
import re
import sys
from pathlib import Path

import yaml

USER = 1000  # useradd's first
INSTRUCTIONS = ("FROM", "RUN", "COPY", "WORKDIR", "USER", "ENTRYPOINT", "CMD")


def check(holds, text):
    if not holds:
        sys.exit(f"FAIL: {text}")


def check_job():
    documents = {d["kind"]: d for d in yaml.safe_load_all(Path("job.yaml").read_text())}
    check(set(documents) == {"Service", "Job"}, "job.yaml is not a Service and a Job")
    service, job = documents["Service"], documents["Job"]
    check(service["apiVersion"] == "v1" and job["apiVersion"] == "batch/v1", "apiVersion")
    check(service["spec"]["clusterIP"] == "None", "the Service is not headless: clusterIP: None")
    check(service["spec"]["publishNotReadyAddresses"], "pods wait for a name of one that is not ready")
    check(service["spec"]["selector"] == {"job-name": job["metadata"]["name"]},
          "the Service does not select the Job's pods")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    check(spec["completionMode"] == "Indexed", "pods without a number: completionMode: Indexed")
    check(spec["completions"] == spec["parallelism"], "pods that do not run at the same time")
    check(pod["subdomain"] == service["metadata"]["name"], "subdomain is not the Service's name")
    check(pod["enableServiceLinks"] is False, "the service's variables look like ours: MNIST_DDP_PORT")
    check(pod["securityContext"]["fsGroup"] == USER, "the image's user may not write to the volumes")
    check(pod["restartPolicy"] in ("Never", "OnFailure"), "restartPolicy")
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    check(set(mounts) == {volume["name"] for volume in pod["volumes"]}, "volumes and mounts differ")
    check("/dev/shm" in mounts.values(), "no memory of its own at /dev/shm")
    args = container["args"]
    check(f"--nnodes={spec['completions']}" in args, "--nnodes is not the Job's completions")
    probe = container["livenessProbe"]["httpGet"]
    check(f"--health-check-port={probe['port']}" in args, "the probe asks at another port")
    check({"containerPort": probe["port"]} in container["ports"], "the probe's port is no container's")
    for arg in args:
        folder = arg.partition("--run-dir=")[2]
        check(not folder or any(folder.startswith(path + "/") for path in mounts.values()),
              f"{arg} is in no volume")
    check(all(isinstance(arg, str) for arg in args), "an argument is no text")
    return args, container["image"].partition(":")[0]


def check_dockerfile(image):
    text = Path("Dockerfile").read_text()
    check(f"-t {image} ." in text, f"the Dockerfile does not say how to build {image}")
    lines = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines()
    stages = []
    found = {}
    for line in filter(None, lines):
        word, _, rest = line.partition(" ")
        check(word in INSTRUCTIONS, f"Dockerfile: {word} is no instruction that is known here")
        check(stages or word == "FROM", "Dockerfile: it does not begin with FROM")
        if word == "FROM":
            stages.append(rest.partition(" AS ")[2])
        if word == "COPY" and rest.startswith("--from="):
            check(rest.split()[0][len("--from="):] in stages[:-1], f"Dockerfile: {rest}")
        if word in ("ENTRYPOINT", "CMD"):
            found[word] = json.loads(rest)
    ignored = Path("../../.dockerignore").read_text().split()
    check("build*" in ignored and ".git" not in ignored, ".dockerignore: what make deb needs, no more")
    check(len(stages) == 2 and found["ENTRYPOINT"] == ["mnist_ddp"], "Dockerfile: the entry point")
    made = Path("../../scripts/make_deb.sh").read_text()
    check("build/deb/mnist-ddp_" in text and '"$build"/deb/*.deb' in made,
          "Dockerfile: make deb leaves its packages elsewhere")


args, image = check_job()
check_dockerfile(image)
print("\n".join(args))

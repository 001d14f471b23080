#!/bin/bash
# Training over the hierarchical backend on two and three "hosts": network namespaces, joined by a
# bridge in one more. The accuracy is gloo's, the bits come again, fewer bytes leave a host. SKIP if
# the kernel does not let us.
set -eu
# shellcheck source=../support/scratch.sh
. "$SOURCE_DIR/tests/support/scratch.sh"
# shellcheck source=../support/netns.sh
. "$SOURCE_DIR/tests/support/netns.sh"
trap 'netns_close; scratch_close' EXIT

[ -e "$BUILD_DIR/mnist_ddp_gloo.so" ] || skip "gloo is not in this build"
netns_open 10.78.0 3

unset GLOO_SOCKET_IFNAME OMP_NUM_THREADS
export HOME=$work XDG_CACHE_HOME=$work/cache # without $MNIST_DDP_DATA our own digits, made once
export MASTER_ADDR=10.78.0.1 MASTER_PORT=22345
"$program" --model mlp --limit 64 --epochs 1 --no-save-model --threads 1 >/dev/null 2>&1

clock_of_host_1=() more=()

# Trains on hosts with that many ranks each, "2 2"; rank 0's result goes to $1.json.
train() { # name, backend, ranks of each host
    local name=$1 backend=$2 rank=0 world=0 host local_rank pids=() n clock
    local -a shape
    read -ra shape <<<"$3"
    for n in "${shape[@]}"; do world=$((world + n)); done
    for host in "${!shape[@]}"; do
        clock=()
        [ "$host" != 1 ] || clock=("${clock_of_host_1[@]}")
        for ((local_rank = 0; local_rank < shape[host]; local_rank++, rank++)); do
            RANK=$rank LOCAL_RANK=$local_rank WORLD_SIZE=$world LOCAL_WORLD_SIZE=${shape[host]} \
                timeout 60 ip netns exec "${netns[host]}" "${clock[@]}" "$program" train \
                --backend "$backend" --model mlp --limit 1024 --batch-size 16 --epochs 1 --threads 1 --json \
                --run-dir "$name" "${more[@]}" >"$name.$rank.out" 2>"$name.$rank.err" &
            pids+=($!)
        done
    done
    for n in "${pids[@]}"; do wait "$n" || fail "$name: exit $?"; done
    tail -n 1 "$name.0.out" >"$name.json"
}

value() { # of key $2 in $1.json
    sed "s/.*\"$2\":\"*\([^,\"]*\).*/\1/" "$1.json"
}

leaves_host_0() { # bytes so far
    ip netns exec "${netns[0]}" cat /sys/class/net/eth0/statistics/tx_bytes
}

for shape in "2 2" "2 1 1"; do
    before=$(leaves_host_0)
    train "gloo$shape" gloo "$shape"
    middle=$(leaves_host_0)
    train "first$shape" hierarchical "$shape"
    after=$(leaves_host_0)
    train "second$shape" auto "$shape"
    for run in first second; do
        [ "$(value "$run$shape" backend)" = hierarchical ] || fail "$run$shape: another backend"
    done
    cmp "first$shape/model.safetensors" "second$shape/model.safetensors" ||
        fail "$shape: two runs leave other weights"
    awk -v a="$(value "gloo$shape" test_acc)" -v b="$(value "first$shape" test_acc)" \
        'BEGIN { exit a - b > .02 || b - a > .02 || a < .5 }' ||
        fail "$shape: accuracy $(value "first$shape" test_acc), gloo's $(value "gloo$shape" test_acc)"
    [ "$shape" != "2 2" ] || cp -r "first$shape" moved
    echo "ranks $shape: host 0 sends $((middle - before)) bytes with gloo, $((after - middle))"
    [ $(((after - middle) * 100)) -lt $(((middle - before) * 75)) ] ||
        fail "$shape: hierarchical does not send less"
done

# One rank a host: that is gloo. Rank 1 begins each of 32 steps 20 ms late, which rank 0 tells apart
# from the transfer, whatever the other host's clock says.
more=(--inject "delay:rank=1,ms=20")
behind=(unshare --time --monotonic=-30 --fork)
if "${behind[@]}" true 2>/dev/null; then clock_of_host_1=("${behind[@]}"); fi
train alone hierarchical "1 1"
[ "$(value alone backend)" = gloo ] || fail "one rank a host is not gloo: $(cat alone.json)"
waiting=$(value alone waiting) reduce=$(value alone reduce)
echo "rank 0 waits $waiting s for rank 1, and $reduce s for the data"
awk -v w="$waiting" 'BEGIN { exit !(w > .5 * 32 * .02) }' ||
    fail "rank 0 has waited $waiting s, and $reduce s for the data"

# Goes on with the same ranks on one host, which adds in another order, and says so once.
"$program" --epochs 2 --run-dir moved --resume --nproc-per-node 4 >/dev/null 2>moved.err ||
    fail "the run does not go on on one host: $(cat moved.err)"
[ "$(grep -c "the run began with sums over 4 x .* by hierarchical" moved.err)" = 1 ] ||
    fail "nothing tells that the sums are others: $(cat moved.err)"

#!/usr/bin/env bash
# A day of a service, in a folder with the images train.dlfs and more.dlfs. `operators_day.rs` runs these commands and
# checks what the jobs have read. Under systemd, `systemctl start`, `reload` and `restart` stand for the commands that
# start, reload and drain the service here (examples/target_service/).

# Morning: the service starts. `node7` has a key; `eval` has none.
(umask 077; dlfs key gen > old.key; dlfs key gen > new.key)
hosts() { (umask 077; printf '[[host]]\nnqn = "nqn.2026-11.com.example:node7"\ndhchap_secret = [%s]\n' "$1" > hosts.toml); }
hosts "'$(cat old.key)'"
cat > targets.toml <<END
access_log = "access.jsonl"
[[subsystem]]
nqn = "nqn.2026-11.io.dlfs:day"
listen = "127.0.0.1:4420"
hosts = "hosts.toml"
allow_hosts = ["nqn.2026-11.com.example:eval"]
[[subsystem.namespace]]
nsid = 1
address = "train.dlfs"
END
dlfs serve --config targets.toml --check
dlfs serve --config targets.toml --control control.sock --metrics 127.0.0.1:9410 & SERVICE=$!
until dlfs ctl --socket control.sock list-subsys; do sleep 0.1; done

# Two jobs begin. Each reads every sample once an epoch and verifies it; `--ids` writes their order down.
day=nvme-tcp://127.0.0.1:4420/nqn.2026-11.io.dlfs:day
node7="--hostnqn nqn.2026-11.com.example:node7"
eval="--hostnqn nqn.2026-11.com.example:eval"
dlfs read "$day?ns=1" $node7 --dhchap-secret old.key --epochs 1000000 --ids node7.ids --state node7.state --json > node7.json & NODE7=$!
dlfs read "$day?ns=1" $eval --order sequential --epochs 1000000 --ids eval.ids --state eval.state --json > eval.json & EVAL=$!
until [ "$(dlfs ctl --socket control.sock list-hosts | wc -l)" = 2 ]; do sleep 0.1; done
dlfs ctl --socket control.sock list-hosts
curl --silent http://127.0.0.1:9410/metrics | grep dlfs_target_controllers

# A data set is added: at once by `dlfs ctl`, and in the file, so that it is there tomorrow. The file alone is enough,
# with SIGHUP or `dlfs ctl reload`.
dlfs ctl --socket control.sock add-ns more.dlfs --nsid 2
dlfs verify "$day?ns=2" $eval
printf '[[subsystem.namespace]]\nnsid = 2\naddress = "more.dlfs"\n' >> targets.toml
dlfs ctl --socket control.sock reload                 # says that nothing has changed
printf '[[subsystem.namespace]]\nnsid = 3\naddress = "more.dlfs"\n' >> targets.toml
kill -HUP $SERVICE
until dlfs ctl --socket control.sock list-subsys | grep nsid=3; do sleep 0.1; done

# The key of `node7` is replaced: the service accepts both while a job has the old one. TLS keys are replaced likewise,
# by a list in `tls_key`.
hosts "'$(cat old.key)', '$(cat new.key)'"
dlfs ctl --socket control.sock reload
dlfs stat "$day?ns=1" $node7 --dhchap-secret new.key

# A new version is installed. The service drains and ends with 0; the jobs wait for the next one, and go on.
dlfs ctl --socket control.sock drain
wait $SERVICE
dlfs serve --config targets.toml --control control.sock --metrics 127.0.0.1:9410 & SERVICE=$!
until [ "$(dlfs ctl --socket control.sock list-hosts | wc -l)" = 2 ]; do sleep 0.1; done

# Evening: the jobs are stopped, with exit code 4. Nobody has the old key any more, so it goes.
kill -INT $NODE7 $EVAL
wait $NODE7 || [ $? = 4 ]
wait $EVAL || [ $? = 4 ]
hosts "'$(cat new.key)'"
dlfs ctl --socket control.sock reload
dlfs stat "$day?ns=1" $node7 --dhchap-secret new.key
! dlfs stat "$day?ns=1" $node7 --dhchap-secret old.key
until grep not-authenticated access.jsonl; do sleep 0.1; done  # the log is written behind the events
dlfs ctl --socket control.sock drain
wait $SERVICE

#!/usr/bin/env python3
"""Leaves out, or swaps, each wait of the CUDA engine in turn: the stream suite has to notice every one.

The edits below go into a copy of the repository, all at once, each behind a question for the environment, so that one
build serves all mutants and the engine itself has no switches. A mutant is dead if a test of crates/cudasim/tests/engine
fails, crashes or hangs. An edit that no longer fits the code, and a wait in src/cuda that no edit covers, is an error.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
CARGO = os.environ.get("CARGO", "cargo")
TIMEOUT = 300
# Slow suites come last, and only where the others have found nothing; `waits::` and `pairs_of` do not run.
SLOW = ["scenarios_give", "each_call_of", "waits::", "pairs_of"]
SUITES = [[word for slow in SLOW for word in ("--skip", slow)], ["scenarios_give"], ["each_call_of"]]


def without(name, statement):
    return statement, f"if !is({name!r}) {{ {statement} }}"


def swapped(name, call, first, second):
    """A call that orders two streams: not made, and made the other way round."""
    statement, back = f"{call}{first}, {second})?;", f"{call}{second}, {first})?;"
    return statement, f"if is('{name}: swapped') {{ {back} }} else if !is('{name}: left out') {{ {statement} }}"


# File below src/cuda -> (what is there once, what takes its place); is('...') asks whether that mutant is the one.
EDITS = {
    "run/executor.rs": [
        swapped("order by hand", "self.events.order(&current, ", "first", "then"),
        without("adopted: not ordered", "self.events.order(&current, first, self.arrivals.on(&current))?;"),
        without("zeroed: no record", "stream.record(&event)?;"),
        without("zeroed: not told", "block.set_ready(stream, event)?;"),
        without("pairs of page-locked memory: stream not waited for", "stream.synchronize()?;"),
        without("pairs of page-locked memory: writer not waited for",
                "unsafe { current.foreign_stream(producer.handle()) }?.synchronize()?;"),
        ("current.synchronize()?;\n        self.keep_alive.reap()?;",
         "if !is('empty_cache: device not waited for') { current.synchronize()?; }\n"
         "if !is('empty_cache: samples not let go') { self.keep_alive.reap()?; }"),
    ],
    "memory/stream_key.rs": [
        ("Ok(StreamKey { handle, id, thread })",
         "Ok(StreamKey { handle, id: if is('streams: told apart by their handles alone') { 0 } else { id }, thread })"),
    ],
    "memory/blocks.rs": [
        without("copy from a block: no record", "foreign.record(&event)?;"),
        without("copy from a block: not held", "copies.keep_alive.until(stream.handle(), event, owners);"),
    ],
    "memory/keep_alive.rs": [
        ("if !event.query()? {", "if !is('samples let go: event not asked') && !event.query()? {"),
        without("end of an engine: not waited for", "let _ = event.synchronize();"),
    ],
    "run/completion.rs": [
        without("check: not waited for", "end.synchronize()?;"),
        without("check: samples not let go", "keep_alive.reap()?;"),
        without("end of a call: not waited for by a stream", "stream.wait(&self.event)?;"),
        without("end of a batch: samples not let go", "let _ = keep_alive.reap();"),
        ("match self.event.query()? {\n            true => Ok(()),\n            false => Ok(self.event.synchronize()?),",
         "match is('block filled anew: its copy not waited for') || self.event.query()? {\n            true => Ok(()),\n"
         "            false => Ok(self.event.synchronize()?),"),
    ],
    "run/block.rs": [
        ("block.wait_for_users(&current, &self.events, stream)?;",
         "if is('block up: waits for the writing alone') { block.wait_on(stream)?; }\n"
         "else if !is('block up: no wait') { block.wait_for_users(&current, &self.events, stream)?; }"),
        without("block up: no record", "stream.record(&end)?;"),
        ("block.set_ready(stream, Arc::clone(&end))",
         "if is('block up: not told') { return Ok(()); }\n            block.set_ready(stream, Arc::clone(&end))"),
        without("block up: failed, not waited for", "let _ = stream.synchronize().or_else(|_| current.synchronize());"),
    ],
    "run/mapping.rs": [
        ("while !trial.end.query()? {", "while !is('mapping tried: event not asked') && !trial.end.query()? {"),
        without("mapping tried: no record", "stream.record(&end)?;"),
    ],
    "memory/device.rs": [
        without("trim: memory on its way back not waited for", "self.release.on(current).synchronize()?;"),
        without("written: not told", "users.ready = Some((stream, event));"),
        without("read: not told", "users.readers.push((stream, event));"),
        ("ready.map_or(Ok(()), |(_, ready)| Ok(stream.wait(&ready)?))",
         "ready.filter(|_| !is('wait_on: no wait')).map_or(Ok(()), |(_, ready)| Ok(stream.wait(&ready)?))"),
        ("self.wait_on(stream)?;\n        let here",
         "if !is('users: writing not waited for') { self.wait_on(stream)?; }\n        let here"),
        ("stream.wait(event)?;\n        }", "if !is('users: readers not waited for') { stream.wait(event)?; }\n        }"),
        ("return Ok(current.synchronize()?);",
         "if !is('users: streams without a name not waited for') { current.synchronize()?; }\n return Ok(());"),
        ("if self.has_too_much_handed_out() {", "if !is('borrowed streams: too much kept') && self.has_too_much_handed_out() {"),
        ("users.borrowed.push(ANY_STREAM);", "if !is('streams without a name: not noted') { users.borrowed.push(ANY_STREAM); }"),
        swapped("users: streams", "events.order(current, ", "user", "stream"),
        ("self.wait_on(stream)?;\n        let mut users",
         "if !is('handed: no wait') { self.wait_on(stream)?; }\n        let mut users"),
        without("handed: not noted", "streams.push(user);"),
        ("ready.map_or(Ok(()), |(_, ready)| Ok(ready.synchronize()?))",
         "ready.filter(|_| !is('synchronize: no wait')).map_or(Ok(()), |(_, ready)| Ok(ready.synchronize()?))"),
        ("match self.memory.end_behind(&current, user, &mut end) {",
         "if is('end of memory: consumers not waited for') { continue; }\n"
         "            match self.memory.end_behind(&current, user, &mut end) {"),
        ("Ok(false) | Err(_) => unnamed.push(user),",
         "Ok(false) => if !is('end of memory: captured stream not waited for') { unnamed.push(user) },\n"
         "                Err(_) => if !is('end of memory: record lost, device not waited for') { unnamed.push(user) },"),
        ("if !known.contains(&writer) {", "if !known.contains(&writer) && !is('end of memory: stream of the call not waited for') {"),
        ("users.borrowed.extend(unnamed);",
         "if !is('end of memory: stream of another thread not waited for') { users.borrowed.extend(unnamed); }"),
        ("if !event.query()? {", "if !is('end of memory: event not asked') && !event.query()? {"),
        without("end of memory: not told, device not waited for", "current.synchronize().map_err(|_| error)?;"),
        ("self.free_ended(current)?;", "if !is('end of memory: given back only when there is none') { self.free_ended(current)?; }"),
        ("stream.record(&event)?;\n        end.events",
         "if !is('end of memory: no record') { stream.record(&event)?; }\n        end.events"),
        ("stream.record(&event)?;\n        let mut ended",
         "if !is('named again: no record') { stream.record(&event)?; }\n        let mut ended"),
        ("one.events.push((named, Arc::clone(&event)));",
         "if !is('named again: not waited for') { one.events.push((named, Arc::clone(&event))); }"),
        ("if let Err(error) = current.synchronize() {",
         "if is('borrowed streams: device not waited for') {} else if let Err(error) = current.synchronize() {"),
        ("current.synchronize()?;\n        }\n        self.free(current, one)",
         "if !is('end of memory: order lost, device not waited for') { current.synchronize()?; }\n        }\n"
         "        self.free(current, one)"),
        ("if one.events.iter().try_for_each(|(_, event)| release.wait(event)).is_err() {",
         "if !is('memory left: given back without a wait')"
         " && one.events.iter().try_for_each(|(_, event)| release.wait(event)).is_err() {"),
        ("users.borrowed.retain(|user| *user != self.home);",
         "if is('memory left to its stream despite other users') {"
         " users.streams.clear(); users.borrowed.clear(); users.readers.clear(); }\n"
         "users.borrowed.retain(|user| *user != self.home);"),
        ("self.hand_out(one);\n        None",
         "if is('memory left: streams of others not waited for') { return Some(one); }\n        self.hand_out(one);\n        None"),
        ("if self.exists(home) && matches!(self.end_behind(current, home, &mut one), Ok(true)) {",
         "if self.exists(home) && (is('memory left: later work on our stream not waited for')"
         " || matches!(self.end_behind(current, home, &mut one), Ok(true))) {"),
        ("if one.home != home {", "if one.home != home && !is('memory left: a destroyed stream not waited for') {"),
    ],
    "memory/pinned.rs": [
        ("let foreign = |free: &Free| matches!(free.until, BlockUntil::EverythingIsDone);",
         "let foreign = |free: &Free| !is('page-locked batch: used again at once')"
         " && matches!(free.until, BlockUntil::EverythingIsDone);"),
        ("let synchronized = current.synchronize_all();",
         "let synchronized = if is('page-locked batch: no wait') { Ok(()) }\n"
         "else if is('page-locked batch: waits for its own device alone') { Ok(current.synchronize()?) }\n"
         "else { current.synchronize_all() };"),
        ("let waited = current.synchronize_all();",
         "let waited = if is('page-locked memory freed: no wait') { Ok(()) }\n"
         "else if is('page-locked memory freed: waits for its own device alone') { Ok(current.synchronize()?) }\n"
         "else { current.synchronize_all() };"),
        ("let until = match self.is_handed_out.load(Ordering::Relaxed) {",
         "let until = match !is('page-locked batch: free when dropped') && self.is_handed_out.load(Ordering::Relaxed) {"),
    ],
    "memory/ring.rs": [
        ("PieceUntil::Event(event) if !event.query()? => break,",
         "PieceUntil::Event(event) if !is('page-locked slot: event not asked') && !event.query()? => break,"),
        ("drop(state);\n                    event.synchronize()?;",
         "if is('page-locked ring full: oldest not waited for') {\n"
         "state.pieces.pop_front(); state.first += 1; continue; }\n"
         "drop(state);\n                    event.synchronize()?;"),
        ("self.free(PieceUntil::Event(event));",
         "self.free(if is('page-locked slot: free at once') { PieceUntil::Now } else { PieceUntil::Event(event) });"),
    ],
    "run/select.rs": [
        ("stream.synchronize()?;\n            block = Some", "if !is('table of a list: not waited for') { stream.synchronize()?; }\n            block = Some"),
        ("stream.synchronize()?;\n    list.keep_for_graph", "if !is('memory of a graph: not waited for') { stream.synchronize()?; }\n    list.keep_for_graph"),
    ],
    "run/run.rs": [
        ("stream.synchronize()?;\n            }\n        }\n        self.order_behind(",
         "if !is('page-locked, read by the host: writers not waited for') { stream.synchronize()?; }\n            }\n        }\n        self.order_behind("),
        ("if finished.is_err()\n", "if finished.is_err() && !is('failed call: not waited for')\n"),
        (".chain(lender).map(", ".chain(lender.filter(|_| !is('lender of memory: not waited for'))).map("),
        swapped("producers", "self.executor.events.order(self.current, ", "producer", "self.stream"),
        ("// SAFETY: the slot has as many bytes and is kept until the event;",
         "let early = if is('chunk up: marked before its copy') { Some(self.event()?) } else { None };\n"
         "// SAFETY: the slot has as many bytes and is kept until the event;"),
        ("let event = self.event()?;", "let event = match early { Some(event) => event, None => self.event()? };"),
        without("end of a call: not waited for by the next one", "self.stream.wait(end.event())?;"),
        without("sample of ours: not waited for", "block.wait_on(self.stream)?;"),
        ("block.wait_for_users(self.current, &self.executor.events, self.stream)?;",
         "if is('output of ours: waits for the writing alone') { block.wait_on(self.stream)?; }\n"
         "else if !is('output of ours: no wait') {\n"
         "block.wait_for_users(self.current, &self.executor.events, self.stream)?; }"),
        ("self.stream.record(&event)?;\n        Ok(event)",
         "if !is('chunk: no record') { self.stream.record(&event)?; }\n        Ok(event)"),
        without("end: no record", "self.stream.record(&end)?;"),
        (".chain(self.blocks_of(out_owners)) {\n            block.set_ready(self.stream, Arc::clone(&end))?;",
         ".chain(self.blocks_of(out_owners).into_iter().filter(|_| !is('end: outputs not told'))) {\n"
         "            if !is('end: blocks not told') { block.set_ready(self.stream, Arc::clone(&end))?; }"),
        without("end: samples of ours not told", "block.set_read(self.stream, Arc::clone(&end))?;"),
        without("end: samples not held", "keep_alive.until(self.stream.handle(), Arc::clone(&end), owners);"),
        without("end: lent memory not held", "owners.extend(self.lent.iter().cloned());"),
    ],
    "run/enqueue.rs": [
        ("if !is_capturing {\n            self.keep_alive.reap_some(POLICY.max_keep_alive_queries)?;",
         "if !is_capturing && !is('samples never let go by the next call') {\n            self.keep_alive.reap()?;"),
        ("let arena = plan.arena.as_ref()",
         "let early = is('producers: ordered before memory is allocated');\n"
         "if early { self.order_behind_producers(plan, &self.readable(plan, options))?; }\nlet arena = plan.arena.as_ref()"),
        ("self.order_behind_producers(plan, &read)?;\n\n",
         "if !early { self.order_behind_producers(plan, &read)?; }\n\n"),
        ("self.launch(plan, &memory.on_device, &metadata)?;",
         "let early = is('end: marked before the launch');\n"
         "if early { self.finish(&plan.out_owners, plan.is_move, &read, options)?; }\nself.launch(plan, &memory.on_device, &metadata)?;"),
        ("self.finish(&plan.out_owners, plan.is_move, &read, options)?;\n        if is_copying {\n            self.stream.synchronize()?;",
         "if !early { self.finish(&plan.out_owners, plan.is_move, &read, options)?; }\n"
         "if is_copying {\nif !is('batch in page-locked memory: not waited for') { self.stream.synchronize()?; }"),
    ],
    "run/download.rs": [
        without("chunk down: not waited for", "chunk.reached.synchronize()?;"),
        ("// SAFETY: the slot has room",
         "let early = if is('chunk down: marked before its copy') { Some(run.event()?) } else { None };\n"
         "// SAFETY: the slot has room"),
        ("let reached = run.event()?;", "let reached = match early { Some(event) => event, None => run.event()? };"),
    ],
    "driver/context.rs": [
        ("self.synchronize()?;\n        for ordinal",
         "if !is('all devices: not its own') { self.synchronize()?; }\n        for ordinal"),
        without("all devices: not the others", "Context::primary(ordinal)?.enter()?.synchronize()?;"),
    ],
    "driver/event_pool.rs": [
        ("first.record(&event)?;\n        then.wait(&event)",
         "if is('order: waits before it is recorded') { then.wait(&event)?; return first.record(&event); }\n"
         "if !is('order: no record') { first.record(&event)?; }\n"
         "if is('order: no wait') { return Ok(()); }\n        then.wait(&event)"),
    ],
}

SWITCH = """
/// Which mutant this run is: scripts/sim/wait_mutants.py.
pub(crate) fn is_mutant(number: u32) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
    let chosen = || std::env::var("WINDROW_MUTANT").ok()?.parse().ok();
    *CHOSEN.get_or_init(chosen) == Some(number)
}
"""

# Calls that wait, or tell others what to wait for; each has to be in an edit, or be one of `ELSEWHERE`.
WAITS = re.compile(r"\.(synchronize|synchronize_all|query|record|wait|wait_on|wait_for_users|order|order_behind_producers"
                   r"|set_ready|set_read|free_after|event)\(")
ELSEWHERE = {
    "&& stream.synchronize().or_else(|_| current.synchronize()).is_err()": "failed call: not waited for",
    "slot.free_after(event);": "page-locked slot: free at once",
    "state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);": "for a thread of ours",
}


def mutate(files):
    """Edits the files, given by path; the names of the mutants, by number from 0."""
    names = []

    def asked(match):
        names.append(match[1])
        return f"crate::cuda::is_mutant({len(names) - 1})"

    for file, edits in EDITS.items():
        text = files[f"src/cuda/{file}"].decode()
        left = text
        for old, _ in edits:
            if text.count(old) != 1:
                sys.exit(f"{file}: there {text.count(old)} times, expected once:\n{old}")
            left = left.replace(old, "")
        for line in left.splitlines() if not file.startswith("driver/") else []:
            if WAITS.search(line) and line.strip() not in ELSEWHERE:
                sys.exit(f"{file}: a wait that no mutant leaves out:\n{line}")
        for old, new in edits:
            text = text.replace(old, re.sub(r"\bis\(['\"](.*?)['\"]\)", asked, new))
        files[f"src/cuda/{file}"] = text.encode()
    files["src/cuda/mod.rs"] += SWITCH.encode()
    return names


def write(copy, files):
    """Makes the copy what `files` says, and touches nothing that is so: the next build is a small one."""
    for path in sorted(copy.rglob("*")):
        if path.is_file() and str(path.relative_to(copy)) not in files:
            path.unlink()
    for name, contents in files.items():
        path = copy / name
        if not path.is_file() or path.read_bytes() != contents:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents)
            path.chmod((ROOT / name).stat().st_mode)


def build(copy):
    """The test binary of the copy."""
    command = [CARGO, "test", "--locked", "-p", "cudasim", "--test", "engine", "--no-run"]
    # Builds of their own: cargo takes what was built of a copy, if it is newer, for the repository's.
    env = {**os.environ, "CARGO_TARGET_DIR": str(TARGET / "wait-mutants")}
    run = subprocess.run(command, cwd=copy, env=env, text=True, stderr=subprocess.PIPE)
    if run.returncode:
        sys.exit(run.stderr)
    return re.search(r"\((\S*engine-\w+)\)", run.stderr)[1]


def dies(binary, copy, number):
    """The first test that fails, or None. Number -1 is the code as it is."""
    for suite in SUITES:
        command = [binary if binary.startswith("/") else str(copy / binary)]
        try:
            run = subprocess.run(command + suite, cwd=copy / "crates/cudasim", text=True, timeout=TIMEOUT,
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 env={**os.environ, "CUDASIM_TEST_SEEDS": "0..25", "WINDROW_MUTANT": str(number)})
        except subprocess.TimeoutExpired:
            return "hangs"
        failed = re.findall(r"^test (\S+) \.\.\. FAILED", run.stdout, re.M)
        if run.returncode:
            return failed[0] if failed else f"ends with {run.returncode}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the names of the mutants and test nothing")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only those that have this in their name")
    options = parser.parse_args()
    copy = TARGET / "mutants"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    files = {file: (ROOT / file).read_bytes() for file in filter(None, listed.split("\0")) if (ROOT / file).is_file()}
    names = mutate(files)
    if options.list:
        print("\n".join(names))
        return
    chosen = [n for n, name in enumerate(names) if not options.names or any(part in name for part in options.names)]
    write(copy, files)
    binary = build(copy)
    if (test := dies(binary, copy, -1)) is not None:
        sys.exit(f"without any mutant: {test}")
    alive = []
    for number in chosen:
        begin = time.monotonic()
        test = dies(binary, copy, number)
        if test is None:
            alive.append(names[number])
        print(f"{names[number]}: {test or 'ALIVE'} ({time.monotonic() - begin:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {len(alive)} alive")
    sys.exit(bool(alive))


main()

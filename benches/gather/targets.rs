//! The project's targets, and whether they were reached.

use std::fmt::Write as _;

use super::contenders::{BATCH, DIRECT, EMPTY, RING, WINDROW};
use super::report::{text, Block};
use super::workloads::Lie;

/// The share of the roof that a workload should reach, cold.
fn share_wanted(block: &Block) -> Option<f64> {
    match block.family {
        "size" if block.lie != Lie::Contiguous && block.title.ends_with("512 B") => Some(0.80),
        "size" if block.lie != Lie::Contiguous => Some(0.90),
        "W1" | "W2" | "W2b" | "W7" | "W10a" | "W10b" => Some(0.85),
        "W3" | "W4a" | "W4b" | "W4c" | "W6" => Some(0.92),
        "W8" | "W8b" => Some(0.90),
        _ => None,
    }
}

/// All targets of all workloads.
pub fn from_blocks(blocks: &[Block]) -> Vec<Target> {
    let mut all = Vec::new();
    for block in blocks {
        let mut add = |what, bound, at_least, found| {
            all.push(Target { name: block.name.clone(), what, bound, at_least, found });
        };
        if let Some(bound) = share_wanted(block) {
            add("of the roof, cold", bound, true, block.share_of_roof(WINDROW, true));
        }
        let ours = block.median(WINDROW, true);
        if matches!(block.lie, Lie::Scattered | Lie::Misaligned) {
            let is_control =
                |other: &&Block| other.lie == Lie::Contiguous && other.title == block.title;
            let control = blocks.iter().find(is_control).and_then(|c| c.median(WINDROW, true));
            let found = control.zip(ours).map(|(control, ours)| ours / control);
            add("times contiguous, cold", 1.05, false, found);
        }
        let is_peer = |name: &str| ![WINDROW, DIRECT, RING].contains(&name);
        let peers = block.series.iter().filter(|s| s.is_cold && s.is_batch && is_peer(&s.name));
        let best = peers.map(|peer| peer.device_us()[1]).min_by(f64::total_cmp);
        if let Some(best) = best {
            add("times as fast as the best peer, cold", 1.0, true, ours.map(|ours| best / ours));
        }
        if block.family == "small" {
            let found = block.share(EMPTY, WINDROW, false);
            add("times an empty launch, warm", 2.0, false, found);
        }
        if block.family == "W5" {
            add("us on the device, cold", 25.0, false, ours);
        }
        if block.lie != Lie::Pinned {
            add("launches", 1.0, false, Some(block.launches as f64));
        }
        for (other, what) in [
            (DIRECT, "times as fast as read by the kernel"),
            (RING, "times as fast as through the ring"),
            (BATCH, "times as fast as cuMemcpyBatchAsync"),
        ] {
            if block.lie == Lie::Pinned {
                if let Some(found) = block.share(WINDROW, other, true) {
                    add(what, 0.95, true, Some(found));
                }
            }
        }
        let bound = 10.0 + 0.02 * block.num_samples as f64;
        let found = block.series(WINDROW, true).map(|series| series.host_us()[1]);
        add("us on the host a call", bound, false, found);
    }
    all
}

/// One of them.
pub struct Target {
    name: String,
    what: &'static str,
    bound: f64,
    at_least: bool,
    found: Option<f64>,
}

impl Target {
    fn verdict(&self, quick: bool) -> &'static str {
        match self.found {
            None => "not measured",
            Some(_) if quick => "not judged",
            Some(found) if (found >= self.bound) == self.at_least || found == self.bound => {
                "reached"
            }
            Some(_) => "MISSED",
        }
    }

    pub fn line(&self, quick: bool) -> String {
        let mut line = format!("{:<12} {}: ", self.verdict(quick), self.name);
        let side = if self.at_least { "at least" } else { "at most" };
        let found = self.found.map_or("nothing".into(), |found| format!("{found:.3}"));
        let _ = write!(line, "{found} {}, wanted {side} {:.2}", self.what, self.bound);
        line
    }

    pub fn json(&self, quick: bool) -> String {
        format!(
            "{{\"workload\": {}, \"what\": {}, \"bound\": {}, \"at_least\": {}, \"found\": {}, \"verdict\": {}}}",
            text(&self.name),
            text(self.what),
            self.bound,
            self.at_least,
            self.found.map_or("null".into(), |found| format!("{found:.4}")),
            text(self.verdict(quick))
        )
    }
}

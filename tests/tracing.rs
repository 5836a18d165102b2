//! Spans as a subscriber of a program sees them (feature `tracing`).
#![cfg(feature = "tracing")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use windrow::observe::{Span, Stage};
use windrow::{Collate, DType, Engine, Pad, SampleView, Transform};

/// Names of spans in the order of their ends, with what they recorded.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    open: Vec<(&'static str, BTreeMap<&'static str, String>)>,
    entered: Vec<u64>,
    ended: Vec<(&'static str, BTreeMap<&'static str, String>)>,
}

struct Fields<'f>(&'f mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Told {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        assert_eq!((metadata.target(), *metadata.level()), ("windrow", Level::DEBUG));
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        state.open.push((span.metadata().name(), BTreeMap::new()));
        Id::from_u64(state.open.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let state = &mut *self.0.lock().unwrap();
        values.record(&mut Fields(&mut state.open[id.into_u64() as usize - 1].1));
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.0.lock().unwrap().entered.pop(), Some(id.into_u64()), "spans nest");
    }

    fn try_close(&self, id: Id) -> bool {
        let state = &mut *self.0.lock().unwrap();
        let ended = state.open[id.into_u64() as usize - 1].clone();
        state.ended.push(ended);
        true
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
}

impl Told {
    fn during(act: impl FnOnce()) -> Vec<(&'static str, BTreeMap<&'static str, String>)> {
        let told = Told::default();
        tracing::subscriber::with_default(told.clone(), act);
        let state = std::mem::take(&mut *told.0.lock().unwrap());
        assert!(
            state.entered.is_empty() && state.open.len() == state.ended.len(),
            "all have ended"
        );
        state.ended
    }
}

fn names(told: &[(&'static str, BTreeMap<&'static str, String>)]) -> Vec<&'static str> {
    told.iter().map(|(name, _)| *name).collect()
}

#[test]
fn spans_of_calls() {
    let engine = Engine::host();
    let rows: [&[i32]; 2] = [&[1, 2, 3], &[4]];
    let uneven = rows.map(|row| SampleView::from_slice(row, &[row.len() as i64]).unwrap());
    let even = [uneven[0].clone(), uneven[0].clone()];

    let scaled = Collate::pad(Pad::new()).cast(DType::F32).transform(Transform::new().scale(2.0));
    let told = Told::during(|| drop(engine.assemble(&uneven, &scaled).unwrap()));
    assert_eq!(names(&told), ["plan", "run"]);
    let stats = engine.stats();
    assert!(told[0].1.is_empty());
    for (field, value) in [
        ("samples", stats.samples),
        ("bytes_in", stats.bytes_in),
        ("bytes_out", stats.bytes_out),
        ("padding_bytes", stats.padding_bytes),
    ] {
        assert_eq!(told[1].1[field], value.to_string(), "{field}");
    }
    assert_eq!(told[1].1["paths"], stats.paths.keys().copied().collect::<Vec<_>>().join(", "));

    for (samples, collate) in [(&even, Collate::stack()), (&uneven, Collate::pad(Pad::new()))] {
        let told = Told::during(|| drop(engine.assemble(samples, &collate).unwrap()));
        assert_eq!(names(&told), ["run"], "a small batch needs no plan");
    }
    let told = Told::during(|| drop(engine.assemble(&uneven, &Collate::stack()).unwrap_err()));
    assert_eq!(names(&told), ["plan"]);
    let told = Told::during(|| drop(engine.enter(Stage::Import)));
    assert_eq!(names(&told), ["import"]);

    for stage in [Stage::Import, Stage::Plan, Stage::Run, Stage::Launch, Stage::Wait, Stage::Export]
    {
        assert_eq!(names(&Told::during(|| drop(Span::enter(stage)))), [stage.name()]);
    }
}

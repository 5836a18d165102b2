//! [`Stage`]: the stages of a call that can be watched.

/// A stage of the data flow, as observers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// Samples are read from foreign tensors.
    Import,
    /// Samples and options are checked, and become a plan.
    Plan,
    /// The plan is run: bytes are moved, or work that moves them is enqueued on a device.
    Run,
    /// A run makes the kernel's table, brings it to the device and enqueues the kernel.
    Launch,
    /// The host waits for a device.
    Wait,
    /// A batch is handed to another library.
    Export,
}

impl Stage {
    /// The name of its NVTX range and of its span: `"import"`, `"plan"`, `"run"`, `"launch"`, `"wait"`,
    /// `"export"`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Import => "import",
            Stage::Plan => "plan",
            Stage::Run => "run",
            Stage::Launch => "launch",
            Stage::Wait => "wait",
            Stage::Export => "export",
        }
    }

    /// The `tracing` span of the stage, entered on this thread; [`Span::note`] fills its fields.
    #[cfg(feature = "tracing")]
    pub(super) fn span(self) -> tracing::span::EnteredSpan {
        use tracing::field::Empty;
        macro_rules! span {
            ($name:literal) => {
                tracing::debug_span!(target: "windrow", $name, paths = Empty, samples = Empty,
                    bytes_in = Empty, bytes_out = Empty, padding_bytes = Empty)
            };
        }
        let span = match self {
            Stage::Import => span!("import"),
            Stage::Plan => span!("plan"),
            Stage::Run => span!("run"),
            Stage::Launch => span!("launch"),
            Stage::Wait => span!("wait"),
            Stage::Export => span!("export"),
        };
        span.entered()
    }
}

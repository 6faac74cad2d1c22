//! A target whose faults are known.

use hotseam_bisect::{Options, Report, run};
use hotseam_target::{
    Arm, Atom, Change, Class, Conformance, Counts, Delta, Outcome, Plan, Span, Target, TargetError, Verdict,
};

pub(crate) type Fails = Box<dyn Fn(&Arm) -> bool>;

pub(crate) struct Fake {
    pub(crate) plan: Plan,
    pub(crate) fails: Fails,
    pub(crate) not_run: Arm,
    /// Variants that fail conformance.
    pub(crate) flagged: Vec<String>,
    pub(crate) signature: Box<dyn Fn(&Arm) -> String>,
    pub(crate) measured: Vec<Arm>,
}

impl Fake {
    pub(crate) fn new(changes: Vec<Change>, fails: impl Fn(&Arm) -> bool + 'static) -> Self {
        let plan = Plan {
            good: "live".into(),
            bad: "suspects".into(),
            changes,
            unchanged: vec!["kv_transport".into()],
            notes: vec![],
        };
        Self {
            plan,
            fails: Box::new(fails),
            not_run: Arm::new(),
            flagged: vec![],
            signature: Box::new(|_| "recall".into()),
            measured: vec![],
        }
    }

    pub(crate) fn run(&mut self) -> Report {
        self.run_with(&Options::default())
    }

    pub(crate) fn run_with(&mut self, options: &Options) -> Report {
        self.measured.clear();
        let report = run(self, options, &mut ());
        assert_eq!(report.runs, self.measured.len());
        for (i, arm) in self.measured.iter().enumerate() {
            assert!(!self.measured[..i].contains(arm), "arm {arm:?} was measured twice");
            assert_eq!(self.plan.with_required(arm), *arm, "arm {arm:?} lacks what it requires");
        }
        report
    }
}

impl Target for Fake {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        // Atoms that never ran make another assignment all the same.
        Ok(format!("{arm:?}"))
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        self.measured.push(arm.clone());
        let bad = (self.fails)(arm);
        Ok(Outcome {
            verdict: if bad { Verdict::Bad } else { Verdict::Good },
            signature: (self.signature)(arm),
            metric: if bad { 0.25 } else { 1.0 },
            summary: if bad { "2/8 recalled" } else { "8/8 recalled" }.into(),
            detail: String::new(),
            seconds: 0.0,
            counts: Counts { fail: u32::from(bad), total: 1 },
            launch: 0,
            grid: vec![],
        })
    }

    fn not_run(&self) -> Arm {
        self.not_run.clone()
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        let passed = !self.flagged.iter().any(|flagged| flagged == variant);
        let detail =
            if passed { "12 cases" } else { "case decode-3: error 2.1, tolerance 1e-5, first at [0, 3]" };
        Ok(Conformance { variant: variant.to_owned(), passed, detail: detail.into() })
    }

    fn oracle(&self) -> String {
        "needle at 2048 tokens, 8 depths".into()
    }
}

/// Builds plans with atoms numbered in order.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) changes: Vec<Change>,
    next: usize,
}

impl Builder {
    pub(crate) fn variant(
        &mut self,
        seam: &str,
        phase: Span,
        class: Class,
        to: &str,
        layers: &[usize],
    ) -> &mut Self {
        let delta = Delta::Variant { from: format!("{seam}/cpu-stock"), to: to.into() };
        self.push(seam, phase, class, delta, to, layers, None)
    }

    /// An option of the change at index `of`.
    pub(crate) fn option(&mut self, of: usize, name: &str) -> &mut Self {
        let base = self.changes[of].clone();
        let delta = Delta::Option { name: name.into(), from: "false".into(), to: "true".into() };
        let variant = format!("{}{{{name}: true}}", base.variants[0]);
        let layers = base.layers();
        self.push(&base.seam, base.phase, base.class, delta, &variant, &layers, Some(of))
    }

    #[allow(clippy::too_many_arguments)]
    fn push(
        &mut self,
        seam: &str,
        phase: Span,
        class: Class,
        delta: Delta,
        variant: &str,
        layers: &[usize],
        of: Option<usize>,
    ) -> &mut Self {
        let layers: Vec<Option<usize>> =
            if layers.is_empty() { vec![None] } else { layers.iter().copied().map(Some).collect() };
        let atoms = layers
            .into_iter()
            .enumerate()
            .map(|(index, layer)| {
                let requires = of.map(|of| self.changes[of].atoms[index].id).into_iter().collect();
                self.next += 1;
                Atom { id: self.next - 1, layer, requires }
            })
            .collect();
        self.changes.push(Change {
            seam: seam.into(),
            ops: vec!["op".into()],
            phase,
            class,
            ranks: Vec::new(),
            delta,
            variants: vec![variant.into()],
            atoms,
        });
        self
    }
}

/// The shape of the demonstration: five suspects on an eight-layer model, 16 changes.
pub(crate) fn suspects() -> Vec<Change> {
    let mut b = Builder::default();
    for (class, layers) in [(Class::Window, &[0, 1, 7][..]), (Class::Csa, &[2, 4, 6]), (Class::Hca, &[3, 5])]
    {
        b.variant("attention", Span::Decode, class, "attention/cpu-sm120-mma", layers);
        b.variant("mhc", Span::Decode, class, "mhc/cpu-bf16-gemm", layers);
        b.variant("mhc", Span::Prefill, class, "mhc/cpu-bf16-gemm", layers);
    }
    b.variant("indexer", Span::Decode, Class::Csa, "indexer/cpu-sm120", &[2, 4, 6]);
    let decode = b.changes.len() - 1;
    b.option(decode, "early_exit");
    b.variant("indexer", Span::Prefill, Class::Csa, "indexer/cpu-sm120", &[2, 4, 6]);
    for phase in [Span::Decode, Span::Prefill] {
        b.variant("moe", phase, Class::Hash, "moe/cpu-fused-scale", &[0, 1]);
    }
    b.variant("mhc", Span::Decode, Class::Model, "mhc/cpu-bf16-gemm", &[]);
    b.variant("kv_transport", Span::Handoff, Class::Model, "kv_transport/other", &[]);
    b.changes
}

/// Ids of the atoms of change `index`.
pub(crate) fn atoms(changes: &[Change], index: usize) -> Arm {
    changes[index].atoms.iter().map(|atom| atom.id).collect()
}

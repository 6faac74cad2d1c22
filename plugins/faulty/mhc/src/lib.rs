//! Planted faults of the hyper-connection seam: stock mHC with a spoilt `comb`, chosen by the option `fault`.
//!
//! Rows and columns of `comb` sum to 1 before and after, so norms and activations look healthy.

use hotseam_cpu_kernels::mhc;
use hotseam_sdk::views::{MhcHead, MhcPost, MhcPre};
use hotseam_sdk::{Ctx, Host, Mhc, Plugin, Result};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Fault {
    /// Columns rolled by one: each stream continues as its neighbour, as after a wrong lane shuffle. A TileLang mHC
    /// kernel was wrong on one architecture, from the first layer on (<https://github.com/vllm-project/vllm/issues/45698>).
    CombRoll,
    /// Transposed: the wrong index is summed in `post` (<https://github.com/NVIDIA/Megatron-LM/issues/4957>).
    CombTransposed,
}

#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Options {
    fault: Fault,
}

struct Faulty {
    fault: Fault,
}

impl Fault {
    /// Spoils one `[hc, hc]` matrix.
    fn apply(self, comb: &mut [f32], hc: usize) {
        match self {
            Self::CombRoll => comb.chunks_exact_mut(hc).for_each(|row| row.rotate_right(1)),
            Self::CombTransposed => {
                for i in 0..hc {
                    for k in 0..i {
                        comb.swap(i * hc + k, k * hc + i);
                    }
                }
            }
        }
    }
}

impl Plugin for Faulty {
    type Options = Options;

    fn create(_host: Host, options: Options) -> Result<Self> {
        Ok(Self { fault: options.fault })
    }
}

impl Mhc for Faulty {
    fn pre(&self, ctx: &Ctx, mut a: MhcPre<'_>) -> Result<()> {
        mhc::pre(ctx.host(), &mut a)?;
        a.comb.chunks_exact_mut(a.hc * a.hc).for_each(|comb| self.fault.apply(comb, a.hc));
        Ok(())
    }

    fn post(&self, ctx: &Ctx, mut a: MhcPost<'_>) -> Result<()> {
        mhc::post(ctx.host(), &mut a)
    }

    fn head(&self, ctx: &Ctx, mut a: MhcHead<'_>) -> Result<()> {
        mhc::head(ctx.host(), &mut a)
    }
}

hotseam_sdk::export_plugin! {
    seam: mhc, plugin: Faulty, ops: [pre, post, head],
    name: "faulty/mhc", description: "stock hyper-connections with a planted fault",
    options: r#"{"fault": {"type": "string", "default": "comb-roll", "values": ["comb-roll", "comb-transposed"],
        "help": "what is wrong"}}"#,
    cpu: "[]"
}

#[cfg(test)]
mod tests {
    use super::Fault;

    #[test]
    fn roll_and_transpose() {
        let mut comb = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        Fault::CombRoll.apply(&mut comb, 3);
        assert_eq!(comb, [3.0, 1.0, 2.0, 6.0, 4.0, 5.0, 9.0, 7.0, 8.0]);
        let mut comb = [1.0, 2.0, 3.0, 4.0];
        Fault::CombTransposed.apply(&mut comb, 2);
        assert_eq!(comb, [1.0, 3.0, 2.0, 4.0]);
    }
}

//! Truth on the arguments of a call, as the host passes them.

use crate::truth;
use crate::truth::numbers::rms_norm;
use hotseam_abi::{
    CompressArgs, CoreArgs, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, RouteArgs, SelectArgs,
    StoreArgs, capability,
};
use hotseam_sdk::ops::Parallel;
use hotseam_sdk::{Result, views};

/// Arguments that truth can answer.
///
/// # Safety of the methods
/// The arguments are as the contract says for the length of the call, and nothing else touches the outputs meanwhile.
pub trait Reference {
    /// Fills the outputs as a variant with these capabilities has to.
    ///
    /// # Errors
    /// What is wrong with the arguments.
    ///
    /// # Safety
    /// See [`Reference`].
    unsafe fn truth(&self, par: &dyn Parallel, capabilities: u64) -> Result<()>;

    /// Checks shapes, dtypes and indices as a plugin's views do, and runs nothing.
    ///
    /// # Errors
    /// What is wrong with the arguments.
    ///
    /// # Safety
    /// See [`Reference`].
    unsafe fn check(&self) -> Result<()>;
}

impl Reference for StoreArgs {
    unsafe fn truth(&self, _par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::store(unsafe { views::Store::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Store::from_raw(self) }.map(|_| ())
    }
}

impl Reference for CompressArgs {
    unsafe fn truth(&self, _par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::compress(unsafe { views::Compress::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Compress::from_raw(self) }.map(|_| ())
    }
}

impl Reference for CoreArgs {
    unsafe fn truth(&self, par: &dyn Parallel, capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::core(par, unsafe { views::Core::from_raw(self)? })?;
        if capabilities & capability::FUSES_INVERSE_ROPE != 0 {
            // SAFETY: the caller's contract; the first view is gone.
            let view = unsafe { views::Core::from_raw(self)? };
            truth::inverse_rope(view.rows.positions, view.rope, view.heads, view.dim, view.out);
        }
        Ok(())
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Core::from_raw(self) }.map(|_| ())
    }
}

impl Reference for SelectArgs {
    unsafe fn truth(&self, par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::select(par, unsafe { views::Select::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Select::from_raw(self) }.map(|_| ())
    }
}

impl Reference for RouteArgs {
    unsafe fn truth(&self, par: &dyn Parallel, capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::route(par, unsafe { views::Route::from_raw(self)? })?;
        let scales = match self.tid2eid.data.is_null() {
            true => capability::ROUTE_SCALES_TOPK,
            false => capability::ROUTE_SCALES_HASH,
        };
        if capabilities & scales != 0 {
            // SAFETY: the caller's contract; the first view is gone.
            let view = unsafe { views::Route::from_raw(self)? };
            view.weights.iter_mut().for_each(|w| *w *= self.routed_scale);
        }
        Ok(())
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Route::from_raw(self) }.map(|_| ())
    }
}

impl Reference for ExpertsArgs {
    unsafe fn truth(&self, par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::experts(par, unsafe { views::Experts::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::Experts::from_raw(self) }.map(|_| ())
    }
}

impl Reference for MhcPreArgs {
    unsafe fn truth(&self, par: &dyn Parallel, capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::mhc_pre(par, unsafe { views::MhcPre::from_raw(self)? })?;
        if capabilities & capability::NORM_FUSED != 0 {
            // SAFETY: the caller's contract; the first view is gone.
            let view = unsafe { views::MhcPre::from_raw(self)? };
            for row in view.x.chunks_exact_mut(view.hidden) {
                let plain = row.to_vec();
                rms_norm(&plain, view.next_norm, view.norm_eps, row);
            }
        }
        Ok(())
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::MhcPre::from_raw(self) }.map(|_| ())
    }
}

impl Reference for MhcPostArgs {
    unsafe fn truth(&self, par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::mhc_post(par, unsafe { views::MhcPost::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::MhcPost::from_raw(self) }.map(|_| ())
    }
}

impl Reference for MhcHeadArgs {
    unsafe fn truth(&self, par: &dyn Parallel, _capabilities: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        truth::mhc_head(par, unsafe { views::MhcHead::from_raw(self)? })
    }

    unsafe fn check(&self) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { views::MhcHead::from_raw(self) }.map(|_| ())
    }
}

/// Scores of all complete entries of each row, empty for padding; the outputs are not touched.
///
/// # Errors
/// What is wrong with the arguments.
///
/// # Safety
/// See [`Reference`].
pub unsafe fn index_scores(args: &SelectArgs, par: &dyn Parallel) -> Result<Vec<Vec<f32>>> {
    // SAFETY: the caller's contract.
    let view = unsafe { views::Select::from_raw(args)? };
    truth::scores(par, &view)
}

/// What a router chooses by, and what it weighs with.
#[derive(Debug, Clone)]
pub struct RouterScores {
    /// Number of experts.
    pub experts: usize,
    /// `[rows, experts]` un-biased scores; zeros for padding.
    pub scores: Vec<f32>,
    /// `[experts]` added before the choice; absent in hash layers.
    pub bias: Option<Vec<f32>>,
    /// `[rows, topk]` experts that the table prescribes; only in hash layers. -1 for padding.
    pub prescribed: Option<Vec<i32>>,
}

/// Recomputes what a router chooses by; the outputs are not touched.
///
/// # Errors
/// What is wrong with the arguments.
///
/// # Safety
/// See [`Reference`].
pub unsafe fn router_scores(args: &RouteArgs, par: &dyn Parallel) -> Result<RouterScores> {
    // SAFETY: the caller's contract.
    let view = unsafe { views::Route::from_raw(args)? };
    let prescribed = view.tid2eid.map(|table| {
        let row = |row: usize| match view.rows.positions[row] {
            p if p < 0 => vec![-1; view.topk],
            _ => table[view.input_ids[row] as usize * view.topk..][..view.topk].to_vec(),
        };
        (0..view.rows.len()).flat_map(row).collect()
    });
    Ok(RouterScores {
        experts: view.gate.n,
        scores: truth::router_scores(par, &view),
        bias: view.bias.map(<[f32]>::to_vec),
        prescribed,
    })
}

/// Probability mass of each thing that a row of `attention.core` attends, averaged over heads.
#[derive(Debug, Clone, Default)]
pub struct Mass {
    /// Position and mass of the window.
    pub window: Vec<(usize, f64)>,
    /// Entry and mass of the compressed entries.
    pub entries: Vec<(usize, f64)>,
    /// Mass of the sinks.
    pub sink: f64,
}

/// Attention mass of one row; empty for padding. `ids` replaces the entries that the row attends, if given: entries
/// below the number that are complete at the row.
///
/// # Errors
/// What is wrong with the arguments.
///
/// # Safety
/// See [`Reference`]; the output is not touched.
pub unsafe fn attention_mass(args: &CoreArgs, row: usize, ids: Option<&[usize]>) -> Result<Mass> {
    // SAFETY: the caller's contract.
    let view = unsafe { views::Core::from_raw(args)? };
    truth::mass(&view, row, ids)
}

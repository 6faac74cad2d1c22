//! `mhc.post`.

use super::streams::Mix;
use hotseam_sdk::ops::{Parallel, dispatch};
use hotseam_sdk::views::MhcPost;
use hotseam_sdk::{Result, SharedMut};

/// Rows that are worth a thread: about 100 KB of streams at a hidden size of 256.
const GRAIN: usize = 24;

/// `mhc.post`: mixes the block's output into the streams, in place.
pub fn post(par: &dyn Parallel, a: &mut MhcPost<'_>) -> Result<()> {
    let (hc, width) = (a.hc, a.hc * a.hidden);
    let streams = SharedMut::new(&mut *a.streams);
    let (f, post, comb) = (a.f, a.post, a.comb);
    let hidden = a.hidden;
    par.run(a.rows.len(), GRAIN, &|rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            let streams = unsafe { streams.slice(row * width..(row + 1) * width) };
            dispatch(Mix {
                streams,
                f: &f[row * hidden..][..hidden],
                post: &post[row * hc..][..hc],
                comb: &comb[row * hc * hc..][..hc * hc],
            });
        }
    });
    Ok(())
}

//! Delta debugging (Zeller and Hildebrandt 2002): a failing set that passes without any one member, whatever the space.

/// A 1-minimal failing subset of `items`, which all together fail. `None` of `test` is a set that cannot be judged and
/// is never taken.
///
/// # Errors
/// The first error of `test`.
pub(crate) fn minimal<E>(
    mut items: Vec<usize>,
    mut test: impl FnMut(&[usize]) -> Result<Option<bool>, E>,
) -> Result<Vec<usize>, E> {
    let mut parts = 2;
    while items.len() >= 2 {
        let size = items.len().div_ceil(parts);
        let chunks: Vec<Vec<usize>> = items.chunks(size).map(<[usize]>::to_vec).collect();
        let rest_of = |chunk: &[usize]| -> Vec<usize> {
            items.iter().copied().filter(|item| !chunk.contains(item)).collect()
        };
        let mut next = None;
        for chunk in &chunks {
            if test(chunk)? == Some(true) {
                next = Some((chunk.clone(), 2));
                break;
            }
        }
        // With two parts, the complements are the parts.
        if next.is_none() && chunks.len() > 2 {
            for chunk in &chunks {
                let rest = rest_of(chunk);
                if test(&rest)? == Some(true) {
                    next = Some((rest, parts.max(3) - 1));
                    break;
                }
            }
        }
        match next {
            Some((smaller, into)) => (items, parts) = (smaller, into),
            None if parts >= items.len() => break,
            None => parts = (parts * 2).min(items.len()),
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::minimal;

    #[test]
    fn every_member_of_the_result_is_needed() {
        type Fails = fn(&[usize]) -> bool;
        let cases: [(Fails, &[usize]); 4] = [
            (|set| set.contains(&5), &[5]),
            (|set| set.contains(&1) && set.contains(&14), &[1, 14]),
            (|set| [2, 7, 13].iter().all(|item| set.contains(item)), &[2, 7, 13]),
            // 9 heals what 3 breaks, unless 4 is there.
            (|set| set.contains(&3) && (!set.contains(&9) || set.contains(&4)), &[3]),
        ];
        for (fails, expected) in cases {
            let found = minimal::<()>((0..16).collect(), |set| Ok(Some(fails(set)))).unwrap();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_cannot_be_judged_is_not_taken() {
        let fails = |set: &[usize]| set.contains(&6);
        // Sets without 7 cannot be judged.
        let test = |set: &[usize]| Ok::<_, ()>(set.contains(&7).then(|| fails(set)));
        assert_eq!(minimal((0..8).collect(), test).unwrap(), [6, 7]);
    }
}

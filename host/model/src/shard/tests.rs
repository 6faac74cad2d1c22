use super::*;

#[test]
fn parts_cover_everything_once_and_differ_by_one() {
    for (number, world) in [(6, 4), (256, 3), (8, 8), (1, 1), (7, 2)] {
        let parts: Vec<_> = (0..world).map(|rank| part(number, rank, world)).collect();
        assert_eq!((parts[0].start, parts.last().unwrap().end), (0, number));
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        let sizes: Vec<_> = parts.iter().map(ExactSizeIterator::len).collect();
        assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1, "{sizes:?}");
    }
}

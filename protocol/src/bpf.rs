//! Filters of system calls, in the instructions of classic BPF, made shorter.
//!
//! The kernel translates a filter, and tries it with every number of a call, whenever a process installs
//! one: about a microsecond an instruction. seccompiler compares the number of a call with one after the
//! other, in five instructions each. [`shorten`] has them found by halves, in two for each run of numbers.

const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_GREATER: u16 = 0x25;
const IF_AT_LEAST: u16 = 0x35;

/// Instructions of seccompiler for a call that gets an answer whatever its arguments are.
const OF_ONE_CALL: usize = 5;

/// An instruction as its eight bytes in one number.
pub const fn pack(code: u16, jt: u8, jf: u8, k: u32) -> u64 {
    code as u64 | (jt as u64) << 16 | (jf as u64) << 24 | (k as u64) << 32
}

/// Its code, its jumps and its operand.
#[expect(clippy::cast_possible_truncation, reason = "each takes its own bits")]
pub const fn unpack(bits: u64) -> (u16, u8, u8, u32) {
    (bits as u16, (bits >> 16) as u8, (bits >> 24) as u8, (bits >> 32) as u32)
}

/// The same filter as one that seccompiler has made, in fewer instructions if there are.
pub fn shorten(filter: &[u64]) -> Vec<u64> {
    let (mut before, mut after, mut answer) = (Vec::new(), Vec::new(), None);
    let mut runs: Vec<(u32, u32)> = Vec::new();
    let mut rest = filter;
    while let Some((first, others)) = rest.split_first() {
        if let Some((number, found)) = of_one_call(rest)
            && answer.is_none_or(|it| it == found)
        {
            answer = Some(found);
            match runs.last_mut() {
                Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
                _ => runs.push((number, number)),
            }
            rest = &rest[OF_ONE_CALL..];
        } else {
            let place = if answer.is_none() { &mut before } else { &mut after };
            place.push(*first);
            rest = others;
        }
    }
    // In the order of their numbers, as seccompiler has them.
    let found = answer.filter(|_| runs.is_sorted()).and_then(|answer| {
        let mut search = find(&runs, 0)?;
        let below = u8::try_from(search.len() + 1).ok()?;
        search.insert(0, pack(IF_AT_LEAST, 0, below, runs.first()?.0));
        search.push(answer);
        Some(search)
    });
    // Each call with rules goes on to the next one if the number is another: their order does not matter.
    found.map_or_else(|| filter.to_vec(), |search| [before, search, after].concat())
}

/// The number and the answer of the call that these instructions begin with, if it has no rules.
fn of_one_call(filter: &[u64]) -> Option<(u32, u64)> {
    let &[compare, into, past, answer, _] = filter.first_chunk::<OF_ONE_CALL>()?;
    let (code, jt, jf, number) = unpack(compare);
    let is_one = (code, jt, jf) == (IF_EQUAL, 0, 1)
        && [into, past] == [pack(JUMP, 0, 0, 1), pack(JUMP, 0, 0, 2)];
    is_one.then_some((number, answer))
}

/// Finds a number, which is not below the first run, among these. What follows comes after `beyond` more
/// instructions: the answer for one of them, and then what is done with others.
fn find(runs: &[(u32, u32)], beyond: usize) -> Option<Vec<u64>> {
    if let [(_, last)] = runs {
        let (others, found) = (u8::try_from(beyond + 1).ok()?, u8::try_from(beyond).ok()?);
        return Some(vec![pack(IF_GREATER, others, found, *last)]);
    }
    let (lower, upper) = runs.split_at(runs.len() / 2);
    let (first, _) = upper.first()?;
    let upper = find(upper, beyond)?;
    let lower = find(lower, beyond + upper.len())?;
    let compare = pack(IF_AT_LEAST, u8::try_from(lower.len()).ok()?, 0, *first);
    Some([vec![compare], lower, upper].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: u16 = 0x20;
    const RETURN: u16 = 0x06;
    const ALLOW: u64 = pack(RETURN, 0, 0, 0x7fff_0000);
    const REFUSE: u64 = pack(RETURN, 0, 0, 0x0005_0001);

    /// What seccompiler makes of calls, of which every seventh may have one first argument only.
    fn long(numbers: impl Iterator<Item = u32>) -> Vec<u64> {
        let mut filter = vec![pack(LOAD, 0, 0, 0)];
        for number in numbers {
            filter.push(pack(IF_EQUAL, 0, 1, number));
            filter.extend(match number % 7 {
                0 => vec![
                    pack(JUMP, 0, 0, 1),
                    pack(JUMP, 0, 0, 4),
                    pack(LOAD, 0, 0, 16),
                    pack(IF_EQUAL, 0, 1, number),
                    ALLOW,
                    REFUSE,
                ],
                _ => vec![pack(JUMP, 0, 0, 1), pack(JUMP, 0, 0, 2), ALLOW, REFUSE],
            });
        }
        filter.push(REFUSE);
        filter
    }

    fn answer(filter: &[u64], number: u32, argument: u32) -> u64 {
        let (mut at, mut value) = (0, 0);
        loop {
            let (code, jt, jf, k) = unpack(filter[at]);
            at += 1;
            let jump = |holds: bool| usize::from(if holds { jt } else { jf });
            match code {
                LOAD => value = if k == 0 { number } else { argument },
                JUMP => at += k as usize,
                IF_EQUAL => at += jump(value == k),
                IF_GREATER => at += jump(value > k),
                IF_AT_LEAST => at += jump(value >= k),
                _ => return filter[at - 1],
            }
        }
    }

    #[test]
    fn shorter_filter_gives_every_call_the_same_answer() {
        type Chosen = fn(&u32) -> bool;
        let lists: [Chosen; 6] = [
            |_| true,
            |_| false,
            |it| it % 3 == 0,
            |it| it % 5 < 3,
            |it| *it == 8,
            |it| it % 7 == 0,
        ];
        for (list, chosen) in lists.into_iter().enumerate() {
            for first in [0, 1, 7, 20] {
                let filter = long((first..200).filter(chosen));
                let short = shorten(&filter);
                assert!(short.len() <= filter.len(), "{list} {first}");
                for number in (0..300).chain([0x4000_0000, u32::MAX]) {
                    for argument in [0, number] {
                        let answers = [&filter, &short].map(|it| answer(it, number, argument));
                        assert_eq!(answers[0], answers[1], "{list} {first}: {number} {argument}");
                    }
                }
            }
        }
    }

    #[test]
    fn runs_of_numbers_take_two_instructions_each() {
        let filter = long((0..300).filter(|it| it % 7 != 0));
        // One to load the number, one for what is below the first run, and the two answers.
        let runs = 300_usize.div_ceil(7);
        assert_eq!(shorten(&filter).len(), 2 * runs + 3);
    }

    #[test]
    fn what_is_not_of_that_form_stays_as_it_is() {
        let descending = long([9, 5].into_iter());
        let many_runs = long((0..2000).filter(|it| it % 7 != 0 && it % 2 == 0));
        for filter in [descending, many_runs, long([].into_iter()), Vec::new()] {
            assert_eq!(shorten(&filter), filter);
        }
    }
}

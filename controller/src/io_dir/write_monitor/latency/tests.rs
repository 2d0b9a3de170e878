use super::*;

#[test]
fn only_a_local_file_system_that_answers_at_once_is_asked_inline() {
    let is_inline = |locality, micros| {
        let mut latency = ScanLatency::new(locality);
        assert!(!latency.is_inline());
        latency.answered(Duration::from_micros(micros));
        latency.is_inline()
    };
    assert!(is_inline(Locality::Local, 999) && !is_inline(Locality::Local, 1000));
    assert!(!is_inline(Locality::Unknown, 1));
}

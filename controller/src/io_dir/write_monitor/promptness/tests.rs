use super::*;

#[test]
fn only_a_local_file_system_that_answers_at_once_is_asked_inline() {
    // ext4, tmpfs; NFS, FUSE, SMB 2, 9P.
    assert_eq!([0xef53, 0x0102_1994].map(Locality::of_type), [Locality::Local; 2]);
    let others = [0x6969, 0x6573_5546, 0xfe53_4d42, 0x0102_1997];
    assert_eq!(others.map(Locality::of_type), [Locality::Unknown; 4]);
    let is_inline = |locality, micros| {
        let mut promptness = Promptness::new(locality);
        assert!(!promptness.is_inline());
        promptness.answered(Duration::from_micros(micros));
        promptness.is_inline()
    };
    assert!(is_inline(Locality::Local, 999) && !is_inline(Locality::Local, 1000));
    assert!(!is_inline(Locality::Unknown, 1));
}

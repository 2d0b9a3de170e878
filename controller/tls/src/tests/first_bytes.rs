//! The classification of a connection's first bytes, for the guard.

use sandbox_api::hosts::first_bytes::{Beginning, DECISIVE};

const SSL2_CLIENT_HELLO: u8 = 1;

/// A ClientHello for TLS 1.2 in SSLv2's format, without its record header.
fn ssl2_message() -> Vec<u8> {
    let ciphers = [0, 0, 0x2f, 0, 0, 0x9c];
    let head = [SSL2_CLIENT_HELLO, 3, 3, 0, ciphers.len() as u8, 0, 0, 0, 16];
    [&head[..], &ciphers, &[7; 16]].concat()
}

/// With a record header of two bytes, and of three.
pub(super) fn ssl2_hellos() -> [Vec<u8>; 3] {
    let message = ssl2_message();
    let size = message.len() as u8;
    [
        [&[0x80, size][..], &message].concat(),
        [&[0, size, 0][..], &message].concat(),
        [&[0, size + 5, 5][..], &message, &[0; 5]].concat(),
    ]
}

/// Classifies byte by byte; returns the result and how many bytes it took.
fn decided(bytes: &[u8]) -> (Beginning, usize) {
    (0..=bytes.len().min(DECISIVE))
        .map(|length| (Beginning::of(&bytes[..length]), length))
        .find(|(beginning, _)| *beginning != Beginning::TooShort)
        .unwrap_or((Beginning::TooShort, bytes.len()))
}

#[test]
fn bytes_that_a_server_reads_as_tls_pass_as_nothing_else() {
    use Beginning::{Ambiguous, Handshake, Skipped};
    assert_eq!(decided(&[0x16, 3, 1]), (Handshake, 1));
    assert_eq!(decided(&[0x16, 4, 0]), (Handshake, 1));
    for kind in [0x14, 0x15, 0x17, 0x18] {
        assert_eq!(decided(&[kind, 3, 1, 0, 2, 1, 0]), (Ambiguous, 1), "{kind:#x}");
    }
    let [short, long, padded] = ssl2_hellos();
    assert_eq!(decided(&short), (Ambiguous, 3));
    assert_eq!(decided(&[0xff, 0xff, 1]), (Ambiguous, 3));
    assert_eq!(decided(&long), (Ambiguous, DECISIVE));
    assert_eq!(decided(&padded), (Ambiguous, DECISIVE));
    // A record of an unknown type, if it is no hello in SSLv2's format.
    for kind in [0, 0x13, 0x19, 0x41, 0x80, 0xff] {
        assert_eq!(decided(&[kind, 3, 3, 0, 5, 1]), (Skipped(10), 5), "{kind:#x}");
    }
    assert_eq!(decided(&[0x80, 3, 1, 0, 5, 1]), (Ambiguous, 3));
    let login = b"\x10\x03\0\x01\x85\xa6\xff\x01\0\0\0\x01\x2d";
    assert_eq!(decided(login), (Skipped(5 + 0x185), DECISIVE), "MySQL's login of 784 bytes");
    assert_eq!(decided(b"PROXY TCP4 "), (Ambiguous, 6));
    assert_eq!(decided(b"\r\n\r\n\0\r\nQUIT\n\x21\x11"), (Ambiguous, DECISIVE));
}

#[test]
fn other_protocols_are_known_by_what_their_clients_say_first() {
    for (protocol, bytes) in [
        ("HTTP", &b"GET / HTTP/1.1\r\n"[..]),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("WebDAV", b"PROPFIND / HTTP/1.1\r\n"),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n"),
        ("SMTP", b"EHLO me\r\n"),
        ("FTP after an empty line", b"\r\nUSER me\r\n"),
        ("IMAP", b"a1 LOGIN me"),
        ("git", b"003egit-upload-pack /"),
        ("Redis", b"*1\r\n$4\r\nPING\r\n"),
        ("PostgreSQL's SSLRequest", b"\0\0\0\x08\x04\xd2\x16\x2f"),
        ("PostgreSQL's startup", b"\0\0\0\x4e\0\x03\0\0user\0"),
        ("PostgreSQL's startup of 257 bytes", b"\0\0\x01\x01\0\x03\0\0user\0me\0"),
        ("MySQL's SSLRequest", b"\x20\0\0\x01\x85\xae\xff\x19\0\0\0\x01\x21"),
        ("MySQL's login", b"\x3b\0\0\x01\x8d\xa2\x0f\0\0\0\0\x01\x21"),
        ("MySQL's long login", b"\xc4\0\0\x01\x85\xa6\xff\x01\0\0\0\x01\x2d"),
        ("TDS", b"\x12\x01\0\x2f\0\0\x01\0\0\0\x1a\0"),
        ("RDP", b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0"),
        ("MQTT", b"\x10\x0c\0\x04MQTT\x04\x02\0"),
        ("Kafka", b"\0\0\0\x14\0\x12\0\x03\0\0\0\0\0\x04"),
        ("MongoDB", b"\x3f\x01\0\0\x01\0\0\0\0\0\0\0\xd4\x07"),
        ("memcached", b"\x80\0\0\x05\0\0\0\0\0\0\0\x05"),
        ("Telnet", b"\xff\xfd\x03\xff\xfb\x18"),
        ("AMQP", b"AMQP\0\0\x09\x01"),
        ("LDAP's StartTLS", b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6"),
    ] {
        let (beginning, length) = decided(bytes);
        assert_eq!(beginning, Beginning::Other, "{protocol}");
        assert!(length <= DECISIVE, "{protocol}");
    }
    // Half of a message waits for the rest.
    assert_eq!(decided(b"\x05\x01\0"), (Beginning::TooShort, 3), "SOCKS5");
    assert_eq!(decided(b"\n"), (Beginning::TooShort, 1));
}

//! A ClientHello for a name, also for the tests of the controller's tunnels.

const MAX_PLAIN_RECORD: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;

pub(crate) fn vector(length_bytes: usize, bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u32).to_be_bytes();
    [&length[4 - length_bytes..], bytes].concat()
}

pub(crate) fn extension(kind: u16, data: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &vector(2, data)].concat()
}

pub(crate) fn server_name(name: &str) -> Vec<u8> {
    extension(SERVER_NAME, &vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat()))
}

/// A ClientHello handshake message with these extensions.
pub(crate) fn message(extensions: &[Vec<u8>]) -> Vec<u8> {
    let body = [
        &[3, 3][..],
        &[7; 32],
        &vector(1, &[9; 32]),
        &vector(2, &[0x13, 0x01, 0x13, 0x02]),
        &vector(1, &[0]),
        &vector(2, &extensions.concat()),
    ]
    .concat();
    [&[CLIENT_HELLO][..], &vector(3, &body)].concat()
}

pub(crate) fn records(kind: u8, message: &[u8], size: usize) -> Vec<u8> {
    let record = |piece: &[u8]| [&[kind, 3, 1][..], &vector(2, piece)].concat();
    message.chunks(size).flat_map(record).collect()
}

/// A ClientHello for this name, in one record.
pub(crate) fn client_hello(name: &str) -> Vec<u8> {
    let versions = extension(43, &[2, 3, 4]);
    records(HANDSHAKE, &message(&[versions, server_name(name)]), MAX_PLAIN_RECORD)
}

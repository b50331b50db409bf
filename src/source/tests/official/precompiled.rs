//! Calls of precompiles that take much gas.

use alloy_primitives::{Address, Bytes, U256, bytes};

const MODEXP: u8 = 0x05;
pub const PAIRING: u8 = 0x08;
const POINT_EVALUATION: u8 = 0x0a;
/// Gas of each call: nearly 100,000 of it, the bound of a short run, are the precompile's.
pub const CALL_GAS: u64 = 120_000;

pub fn at(precompile: u8) -> Address {
    Address::with_last_byte(precompile)
}

/// Returns a pair for the pairing check: the generator of G1, and that of G2.
pub fn pair() -> Vec<u8> {
    const G2: [&str; 4] = [
        "198e9393920d483a7260bfb731fb5d25f1aa493335a9e71297e485b7aef312c2",
        "1800deef121f1e76426a00665e5c4479674322d4f75edadd46debd5cd992f6ed",
        "090689d0585ff075ec9e99ad690c3395bc4b313370b38ef355acdadcd122975b",
        "12c85ea5db8c6deb4aab71808dcb408fe3d1e7690c43d37b4ce6cc0166fa7daa",
    ];
    let g1 = [U256::from(1), U256::from(2)].map(|word| word.to_be_bytes::<32>()).concat();
    [g1, G2.map(|word| const_hex::decode(word).unwrap()).concat()].concat()
}

/// Returns calls whose precompiles fail: a modexp for which the gas is not enough, a pairing whose last point is not on
/// its curve, and a proof that is well formed and wrong.
pub fn failing() -> [(u8, Bytes); 3] {
    let lengths = [1, 512, 512].map(|length| U256::from(length).to_be_bytes::<32>()).concat();
    let modexp = [lengths, vec![0xff; 1025]].concat();
    let mut pairing = pair();
    *pairing.last_mut().unwrap() ^= 1;
    // The commitment to the polynomial that is zero everywhere, and a value of one.
    let infinity = [vec![0xc0], vec![0; 47]].concat();
    let hash = bytes!("010657f37554c781402a22917dee2f75def7ab966d7b770905398eba3c444014");
    let (z, y) = (vec![0; 32], U256::ONE.to_be_bytes_vec());
    let proof = [hash.to_vec(), z, y, infinity.clone(), infinity].concat();
    [(MODEXP, modexp.into()), (PAIRING, pairing.into()), (POINT_EVALUATION, proof.into())]
}

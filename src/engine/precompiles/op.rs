//! The precompiles of the OP stack's forks: the ones of the Ethereum fork that each contains, P256VERIFY from Fjord
//! on, and input limits for precompiles whose work grows with the input.

use std::sync::OnceLock;

use revm::{
    precompile::{
        Precompile, PrecompileHalt, PrecompileOutput, PrecompileSpecId, Precompiles,
        bls12_381::{g1_msm, g2_msm, pairing},
        bn254::pair,
        secp256r1,
    },
    primitives::hardfork::SpecId,
};

use crate::chain::OpFork;

/// The longest input in bytes of the pairing of bn256 from
/// [Granite](https://specs.optimism.io/protocol/granite/exec-engine.html#bn256pairing-precompile-input-restriction),
/// [Jovian](https://specs.optimism.io/protocol/jovian/exec-engine.html#precompile-input-size-restrictions) and
/// [Karst](https://specs.optimism.io/protocol/karst/exec-engine.html#precompile-input-size-restrictions) on. Base has
/// Jovian's with Azul, too.
mod bn256_limit {
    pub(super) const GRANITE: usize = 112_687;
    pub(super) const JOVIAN: usize = 81_984;
    pub(super) const KARST: usize = 57_600;
}

/// The longest inputs in bytes of the precompiles of BLS12-381 (sums in G1 and in G2, pairing), from
/// [Isthmus](https://specs.optimism.io/protocol/isthmus/exec-engine.html#bls-precompiles) and
/// [Jovian](https://specs.optimism.io/protocol/jovian/exec-engine.html#precompile-input-size-restrictions) on.
mod bls_limits {
    pub(super) const ISTHMUS: [usize; 3] = [513_760, 488_448, 235_008];
    pub(super) const JOVIAN: [usize; 3] = [288_960, 278_784, 156_672];
}

/// Returns a precompile that fails if its input is longer than `$limit` bytes: then the call loses its gas.
macro_rules! limited {
    ($precompile:expr, $limit:expr) => {
        Precompile::new($precompile.id().clone(), *$precompile.address(), |input, gas, reservoir| {
            if input.len() > $limit {
                let halt = PrecompileHalt::other_static("input longer than the chain allows");
                return Ok(PrecompileOutput::halt(halt, reservoir));
            }
            $precompile.execute(input, gas, reservoir)
        })
    };
}

/// Returns the precompiles of a fork.
pub(in crate::engine) fn precompiles(fork: OpFork) -> &'static Precompiles {
    static FORKS: [OnceLock<Precompiles>; OpFork::Karst as usize + 1] =
        [const { OnceLock::new() }; OpFork::Karst as usize + 1];
    FORKS[fork as usize].get_or_init(|| of_fork(fork))
}

fn of_fork(fork: OpFork) -> Precompiles {
    let ethereum = SpecId::from(fork);
    let mut precompiles = Precompiles::new(PrecompileSpecId::from_spec_id(ethereum)).clone();
    // <https://specs.optimism.io/protocol/fjord/exec-engine.html>: RIP-7212. With Osaka its cost follows EIP-7951.
    if fork >= OpFork::Fjord && !ethereum.is_enabled_in(SpecId::OSAKA) {
        precompiles.extend([secp256r1::P256VERIFY]);
    }
    let bn256 = match fork {
        OpFork::Granite | OpFork::Holocene | OpFork::Isthmus => Some(limited!(pair::ISTANBUL, bn256_limit::GRANITE)),
        OpFork::Jovian | OpFork::Azul => Some(limited!(pair::ISTANBUL, bn256_limit::JOVIAN)),
        OpFork::Karst => Some(limited!(pair::ISTANBUL, bn256_limit::KARST)),
        _ => None,
    };
    precompiles.extend(bn256);
    if fork >= OpFork::Jovian {
        precompiles.extend([
            limited!(g1_msm::PRECOMPILE, bls_limits::JOVIAN[0]),
            limited!(g2_msm::PRECOMPILE, bls_limits::JOVIAN[1]),
            limited!(pairing::PRECOMPILE, bls_limits::JOVIAN[2]),
        ]);
    } else if fork >= OpFork::Isthmus {
        precompiles.extend([
            limited!(g1_msm::PRECOMPILE, bls_limits::ISTHMUS[0]),
            limited!(g2_msm::PRECOMPILE, bls_limits::ISTHMUS[1]),
            limited!(pairing::PRECOMPILE, bls_limits::ISTHMUS[2]),
        ]);
    }
    precompiles
}

//! The feed of an embedded node whose sub-blocks the program gives.

use alloy_consensus::{TxEnvelope, transaction::SignerRecoverable};
use alloy_primitives::B256;
use tokio::sync::{mpsc, oneshot};

use super::run::Error;
use crate::source::given::GivenSubBlock;

/// The feed of a node that was started by [`Node::start_fed`](crate::Node::start_fed): the only writer of its chain.
///
/// After it is dropped, the chain has no further sub-blocks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use presim::{Config, Feeder, Node};
///
/// /// Two sub-blocks make a block.
/// async fn empty_block(feeder: &mut Feeder) -> Result<(), presim::Error> {
///     for ends_block in [false, true] {
///         feeder.push([], ends_block).await?;
///     }
///     Ok(())
/// }
///
/// let (node, mut feeder) = Node::start_fed(Config::default()).await?;
/// let before = node.snapshot();
/// empty_block(&mut feeder).await?;
/// assert_eq!(node.snapshot().sealed().0, before.sealed().0 + 1);
/// # Ok(node.stop().await) }
/// ```
#[derive(Debug)]
pub struct Feeder(pub(super) mpsc::Sender<GivenSubBlock>);

/// The sub-blocks of [`Feeder`] that may wait.
pub(super) const WAITING: usize = 1;

impl Feeder {
    /// Appends a sub-block with these transactions to the block being built; if `ends_block`, seals the block after it and
    /// opens the next one. Returns when the snapshot is visible, with the hashes of the transactions that could not be
    /// included and the reasons.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if a signature is invalid, if the sub-block cannot be executed or stored, or if the node is
    /// stopping. Nothing is then published.
    pub async fn push(
        &mut self,
        transactions: impl IntoIterator<Item = TxEnvelope> + Send,
        ends_block: bool,
    ) -> Result<Vec<(B256, String)>, Error> {
        let recovered = transactions.into_iter().enumerate().map(|(index, tx)| {
            tx.try_into_recovered()
                .map_err(|_| Error::NotRun(format!("transactions[{index}]: the signature is invalid")))
        });
        let (published, outcome) = oneshot::channel();
        let given = GivenSubBlock { transactions: recovered.collect::<Result<_, _>>()?, ends_block, published };
        let stopping = || Error::NotRun("the node is stopping".to_owned());
        self.0.send(given).await.map_err(|_| stopping())?;
        outcome.await.map_err(|_| stopping())?.map_err(Error::NotRun)
    }
}

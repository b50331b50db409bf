//! The identity of a publishing node, which is stored in its data directory.

use std::net::SocketAddr;

use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use crate::store::{Store, StoreError, open_if_there};

/// The identity of the data directory.
const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node");
const ID: &str = "id";

/// A node that publishes, as the other nodes of its fleet know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The id of its data directory: 128 random bits in hex. Without a data directory, the id of the process.
    pub id: String,
    /// The name of the node, for people: its machine and the address on which it listens.
    pub node: String,
}

impl NodeIdentity {
    /// Returns the identity of the node that listens on `listen`. A new `store` gets its id.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError`] if the store cannot be read or written.
    pub fn of(store: &Store, listen: SocketAddr) -> Result<Self, StoreError> {
        let known = store.read(|transaction| {
            let Some(table) = open_if_there(transaction, NODE)? else { return Ok(None) };
            Ok(table.get(ID)?.map(|id| id.value().to_owned()))
        })?;
        let id = match known {
            Some(known) => known,
            None => {
                let id = format!("{:032x}", rand::random::<u128>());
                let new = id.clone();
                store.write_now(move |transaction| {
                    transaction.open_table(NODE)?.insert(ID, new.as_str())?;
                    Ok(())
                })?;
                id
            }
        };
        let machine = rustix::system::uname();
        let node = format!("{}/{listen}/{}", machine.nodename().to_string_lossy(), &id[..8]);
        Ok(Self { id, node })
    }
}

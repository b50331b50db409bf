// hardhat on the node at PRESIM_TESTING_URL.
module.exports = { solidity: '0.8.28', networks: { presim: { url: process.env.PRESIM_TESTING_URL } } }

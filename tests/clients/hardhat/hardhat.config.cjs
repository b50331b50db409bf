// hardhat on the node at PRESIM_TESTING_URL, and hardhat's own network, which becomes a fork of that.
module.exports = {
  solidity: '0.8.28',
  paths: { cache: `${require('node:os').tmpdir()}/presim-hardhat-cache` },
  networks: { presim: { url: process.env.PRESIM_TESTING_URL }, hardhat: { chainId: 31337 } },
}

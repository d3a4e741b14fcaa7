"""RecurrentPPO as its documentation begins: CartPole, two LSTMs of 256 (the actor's and the critic's)."""

import numpy as np
import torch
from program import Accelerate, Program
from sb3_contrib import RecurrentPPO
from torch import Tensor

STEPS = 64  # of an episode


def build(case: str, accelerate: Accelerate) -> Program:
    agent = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_epochs=1, seed=0)
    agent.learn(agent.n_steps)  # fills the buffer
    accelerate(agent.policy)
    episode = np.random.default_rng(0).normal(size=(STEPS, 4)).astype(np.float32)

    def train() -> float:
        agent.train()  # one mini-batch of 128 steps
        return agent.logger.name_to_value["train/loss"]

    def infer() -> Tensor:
        state, states = None, []
        for t, seen in enumerate(episode):
            _, state = agent.predict(seen, state=state, episode_start=np.array([t == 0]), deterministic=True)
            states.append(state[0])
        return torch.from_numpy(np.stack(states))

    return Program(agent.policy, train, infer)

"""A Q-network with memory, as in torchrl's tutorial on recurrent DQN: trained on trajectories, run step by step."""

import torch
from program import Accelerate, Program
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import OneHot
from torchrl.modules import MLP, GRUModule, LSTMModule, QValueModule, set_recurrent_mode
from torchrl.objectives import DQNLoss

B, T, OBSERVED, H, ACTIONS = 32, 50, 16, 128, 4
MODULES = {"LSTMModule": LSTMModule, "GRUModule": GRUModule}


def trajectories() -> TensorDict:
    """As a replay buffer gives them: episodes also begin in the middle."""

    def seen() -> dict[str, Tensor]:
        return {"observation": torch.randn(B, T, OBSERVED), "is_init": torch.rand(B, T, 1) < 0.03}

    action = nn.functional.one_hot(torch.randint(ACTIONS, (B, T)), ACTIONS)
    done = torch.zeros(B, T, 1, dtype=torch.bool)
    after = {**seen(), "reward": torch.randn(B, T, 1), "done": done, "terminated": done}
    return TensorDict({**seen(), "action": action, "next": after}, [B, T])


def build(case: str, accelerate: Accelerate) -> Program:
    embed = TensorDictModule(nn.Linear(OBSERVED, H), ["observation"], ["embed"])
    memory = MODULES[case](input_size=H, hidden_size=H, in_key="embed", out_key="embed")
    head = TensorDictModule(MLP(H, ACTIONS, num_cells=[64]), ["embed"], ["action_value"])
    policy = TensorDictSequential(embed, memory, head, QValueModule(spec=OneHot(ACTIONS)))
    accelerate(policy)
    loss = DQNLoss(policy, action_space=OneHot(ACTIONS), delay_value=True)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4)
    batch, episode = trajectories(), torch.randn(T, 8, OBSERVED)
    states = [key for key in memory.in_keys if key not in ("embed", "is_init")]

    def train() -> float:
        with set_recurrent_mode(True):
            found = loss(batch.clone())["loss"]
        optimizer.zero_grad()
        found.backward()
        optimizer.step()
        return found.item()

    @torch.no_grad()
    def infer() -> Tensor:
        now = TensorDict({key: torch.zeros(8, 1, H) for key in states}, [8])
        values = []
        for t, seen in enumerate(episode):
            now["observation"], now["is_init"] = seen, torch.full((8, 1), t == 0)
            policy(now)
            values.append(now["action_value"])
            now = now["next"].select(*states)
        return torch.stack(values)

    return Program(policy, train, infer)

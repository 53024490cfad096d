"""Parameters that take no gradient for a part of forward: a critic while the actor's loss is computed, a discriminator
while the generator's is. They got the gradients of both losses."""

import torch
from modules import Doubled, Of, check, pair, same_through_both_doors, x


class Critic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, a):
        loss = self.critic(a).pow(2).mean()
        self.critic.requires_grad_(False)
        loss = loss - self.critic(self.actor(a)).mean()
        self.critic.requires_grad_(True)
        return loss


def test_a_critic_has_no_gradient_of_the_loss_that_it_is_frozen_in():
    ours = same_through_both_doors(Critic, (3, 3, 5))
    assert ours.fallback_reason is None


def test_each_way_to_use_a_parameter_leads_to_no_gradient_while_it_is_frozen():
    def forward(m, a):
        weight = m.k.weight
        weight.requires_grad = False
        used = [a @ weight.T, a @ weight[:2].mT, Doubled.apply(weight), torch.stack([weight, weight]), weight * a.sum()]
        loss = sum(each.sum() for each in used)
        weight.requires_grad = True
        return m.l(a).sum() * loss + m.k(a).sum()

    check(Of(forward, k=torch.nn.Linear(4, 4)), x(), steps=3)


def test_what_is_written_while_it_is_frozen_is_read_behind():
    def forward(m, a):
        m.k.weight.requires_grad_(False)
        with torch.no_grad():
            m.k.weight.mul_(0.5)
        first = m.k(m.l(a))
        m.k.weight.requires_grad_(True)
        return first + m.k(a)

    check(Of(forward, k=torch.nn.Linear(4, 4)), x(), steps=3)


def test_one_that_is_frozen_later_on_is_thawed_by_the_next_call_as_eager_does(with_pieces):
    ours, theirs = pair(Critic)
    for step in range(3):
        for module in (ours, theirs):
            module.critic.requires_grad_(step != 1)
            module.zero_grad()
            module(x().double()).backward()
        for name, parameter in theirs.named_parameters():
            assert ours.get_parameter(name).requires_grad == parameter.requires_grad
            torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad)

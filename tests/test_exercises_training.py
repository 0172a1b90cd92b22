"""Exercises of notebook 10: what each wrong answer is told."""

import pytest
import torch


def untouched(*_):
    return ...


# ---- 1. which lines still count


@pytest.mark.parametrize(
    "letters, says",
    [
        ("acfi", "solved: a writes into memory"),
        (list("ifca"), "solved: a writes into memory"),
        ("acdfi", "not yet: the weights are the same with and without d. d gives the optimizer new tensors"),
        ("abcfgi", "not yet: the weights are the same with and without b. b gives the name x"),
        ("acf", "not yet: all of yours count, and 1 more does: "),
        ("", "not yet: all of yours count, and 4 more do: "),
        ("ack", "not yet: the answer is a set of letters from a to j"),
    ],
)
def test_lines_that_count(letters, says, verdict):
    def lines_that_count():
        return set(letters) if isinstance(letters, str) else letters

    assert verdict(lines_that_count).startswith(says)


def test_lines_that_count_leaves_the_generator(verdict):
    def lines_that_count():
        return {"a"}

    torch.npu.manual_seed(3)
    want = torch.rand(3, device="npu")
    torch.npu.manual_seed(3)
    verdict(lines_that_count)
    assert torch.equal(torch.rand(3, device="npu"), want)


def test_a_number_is_no_set_of_letters(verdict):
    def lines_that_count():
        return 4

    assert verdict(lines_that_count).startswith("not yet: the answer is a set of letters from a to j")


# ---- 2. accumulate over micro-batches


def own_gradients(graphed, optimizer, loss_fn, micro_batches):
    for p in graphed.parameters():
        p.grad = torch.zeros_like(p)
    for x, y in micro_batches:
        (loss_fn(graphed(x), y) / len(micro_batches)).backward()
    optimizer.step()


def cloned(graphed, optimizer, loss_fn, micro_batches):
    optimizer.zero_grad(set_to_none=True)
    for x, y in micro_batches:
        loss_fn(graphed(x), y).backward()
        for p in graphed.parameters():
            p.grad = p.grad.clone()
    for p in graphed.parameters():
        p.grad /= len(micro_batches)
    optimizer.step()


def aliased(graphed, optimizer, loss_fn, micro_batches, to_none=True):
    optimizer.zero_grad(set_to_none=to_none)
    for x, y in micro_batches:
        (loss_fn(graphed(x), y) / len(micro_batches)).backward()
    optimizer.step()


def zeroed_only(*args):
    aliased(*args, to_none=False)


def one_backward(graphed, optimizer, loss_fn, micro_batches):
    for p in graphed.parameters():
        p.grad = torch.zeros_like(p)
    sum(loss_fn(graphed(x), y) / len(micro_batches) for x, y in micro_batches).backward()
    optimizer.step()


def undivided(graphed, optimizer, loss_fn, micro_batches):
    for p in graphed.parameters():
        p.grad = torch.zeros_like(p)
    for x, y in micro_batches:
        loss_fn(graphed(x), y).backward()
    optimizer.step()


def never_zeroed(graphed, optimizer, loss_fn, micro_batches):
    for p in graphed.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for x, y in micro_batches:
        (loss_fn(graphed(x), y) / len(micro_batches)).backward()
    optimizer.step()


def not_stepped(graphed, optimizer, loss_fn, micro_batches):
    for x, y in micro_batches:
        loss_fn(graphed(x), y).backward()


def twice(graphed, optimizer, loss_fn, micro_batches):
    own_gradients(graphed, optimizer, loss_fn, micro_batches)
    graphed(micro_batches[0][0])


@pytest.mark.parametrize(
    "answer, says",
    [
        (untouched, "to do: "),
        (own_gradients, "solved: "),
        (cloned, "solved: "),
        (aliased, "not yet: with 2 micro-batches the gradient is 2 times that of the last one"),
        (zeroed_only, "not yet: with 2 micro-batches the gradient is 2 times that of the last one"),
        (one_backward, "not yet: graphed is called several times before its backward pass"),
        (undivided, "not yet: the weights are those of the sum of the gradients"),
        (never_zeroed, "not yet: with one micro-batch the weights are wrong in call 2, and right before"),
        (not_stepped, "not yet: no weight has changed after the first call"),
        (twice, "not yet: graphed was called 13 times for 9 micro-batches"),
    ],
)
def test_accumulate(answer, says, verdict):
    assert verdict(answer, "accumulate").startswith(says)


# ---- 3. leave no trace of the warm-up


def on_a_side_stream(step, times=3):
    side = torch.npu.Stream()
    side.wait_stream(torch.npu.current_stream())
    with torch.npu.stream(side):
        for _ in range(times):
            step()
    torch.npu.current_stream().wait_stream(side)


def as_before(model, optimizer, step):
    saved = {name: x.clone() for name, x in model.state_dict().items()}
    used = {p: {name: x.clone() for name, x in state.items()} for p, state in optimizer.state.items()}
    on_a_side_stream(step)
    model.load_state_dict(saved)
    for p, state in optimizer.state.items():
        for name, value in state.items():
            value.copy_(used[p][name]) if p in used else value.zero_()


def with_zeros(model, optimizer, step):
    saved = {name: x.clone() for name, x in model.state_dict().items()}
    on_a_side_stream(step)
    model.load_state_dict(saved)
    for state in optimizer.state.values():
        for value in state.values():
            value.zero_()


def cleared(model, optimizer, step):
    with_zeros(model, optimizer, step)
    optimizer.state.clear()


def model_only(model, optimizer, step):
    saved = {name: x.clone() for name, x in model.state_dict().items()}
    on_a_side_stream(step)
    model.load_state_dict(saved)


def references(model, optimizer, step):
    saved = model.state_dict()  # the tensors themselves, which the warm-up moves
    on_a_side_stream(step)
    model.load_state_dict(saved)


def parameters_only(model, optimizer, step):
    saved = [p.detach().clone() for p in model.parameters()]
    on_a_side_stream(step)
    with torch.no_grad():
        for p, value in zip(model.parameters(), saved, strict=True):
            p.copy_(value)


def on_the_caller_s_stream(model, optimizer, step):
    step()


def on_its_stream_still(model, optimizer, step):
    torch.npu.set_stream(torch.npu.Stream())
    as_before(model, optimizer, lambda: step())
    torch.npu.synchronize()


def in_another_mode(model, optimizer, step):
    as_before(model, optimizer, step)
    model.eval()


def at_another_rate(model, optimizer, step):
    optimizer.param_groups[0]["lr"].zero_()
    as_before(model, optimizer, step)


def once(model, optimizer, step):
    steps = iter((step, lambda: None, lambda: None))
    as_before(model, optimizer, lambda: next(steps)())


def nothing(model, optimizer, step):
    pass


@pytest.mark.parametrize(
    "answer, says",
    [
        (untouched, "to do: "),
        (as_before, "solved: "),
        (with_zeros, "not yet: with a model that was trained for 2 steps before the optimizer's state 'step'"),
        (cleared, "not yet: with a new model the optimizer has no state afterwards"),
        (model_only, "not yet: with a new model the optimizer's state 'step' should be zero"),
        (references, "not yet: with a new model 0.weight is not what it was: is it saved as a copy?"),
        (parameters_only, "not yet: with a new model 1.running_mean is not what it was: it is a buffer"),
        (on_the_caller_s_stream, "not yet: step() ran on the stream of the caller"),
        (nothing, "not yet: step() was not called"),
        (once, "not yet: the exercise asks for three calls of step(), and yours makes 1"),
        (on_its_stream_still, "not yet: the side stream is still the current one"),
        (in_another_mode, "not yet: afterwards the model is in another mode"),
        (at_another_rate, "not yet: the optimizer's rate is not what it was"),
    ],
)
def test_warmed_up(answer, says, verdict):
    assert verdict(answer, "warmed_up").startswith(says)


# ---- 4. a captured step


def captured(model, optimizer, loss_fn, x, y, prepare=as_before, clone=True, copy=True, stepped=True):
    x, y = (x.clone(), y.clone()) if copy else (x, y)

    def whole():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(x), y)
        loss.backward()
        if stepped:
            optimizer.step()
        return loss.detach()

    prepare(model, optimizer, whole)
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        loss = whole()

    def step(new_x, new_y):
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        return loss.clone() if clone else loss

    return step


def by_the_helper(model, optimizer, loss_fn, x, y):
    import helpers

    saved = {name: v.clone() for name, v in model.state_dict().items()}
    used = {p: {name: v.clone() for name, v in state.items()} for p, state in optimizer.state.items()}

    @torch.enable_grad()
    def whole(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    replay = helpers.capture(whole, x, y)
    model.load_state_dict(saved)
    for p, state in optimizer.state.items():
        for name, value in state.items():
            value.copy_(used[p][name]) if p in used else value.zero_()
    return lambda x, y: replay(x, y, clone=True)


def static_loss(*args):
    return captured(*args, clone=False)


def into_the_example(*args):
    return captured(*args, copy=False)


def no_warm_up(*args):
    return captured(*args, prepare=lambda *_: None)


def moved_by_the_warm_up(*args):
    return captured(*args, prepare=lambda model, optimizer, step: on_a_side_stream(step))


def moved_statistics(*args):
    def prepare(model, optimizer, step):
        moved = None

        def noted():
            nonlocal moved
            step()
            moved = {name: x.clone() for name, x in model.named_buffers()}

        as_before(model, optimizer, noted)
        model.load_state_dict(model.state_dict() | moved)

    return captured(*args, prepare=prepare)


def forgets_the_averages(*args):
    return captured(*args, prepare=with_zeros)


def never_steps(*args):
    return captured(*args, stepped=False, prepare=lambda *_: None)


def eager(model, optimizer, loss_fn, x, y):
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def frozen_rate(model, optimizer, *rest):
    group = optimizer.param_groups[0]
    rate, frozen = group["lr"], group["lr"].clone()
    group["lr"] = frozen
    step = captured(model, optimizer, *rest)
    group["lr"] = rate
    step.keeps = frozen  # the graph reads its address
    return step


def only_the_example(model, optimizer, loss_fn, x, y):
    step = captured(model, optimizer, loss_fn, x, y)
    return lambda *_: step(x, y) * 0


def returns_a_number(*args):
    step = captured(*args)
    return lambda x, y: step(x, y).item()


def returns_a_loss(model, optimizer, loss_fn, x, y):
    return loss_fn(model(x), y)


@pytest.mark.parametrize(
    "answer, says",
    [
        (untouched, "to do: "),
        (captured, "solved: losses and weights are equal to eager, by "),
        (by_the_helper, "solved: losses and weights are equal to eager, by "),
        (returns_a_loss, "not yet: return a function step(x, y); yours is Tensor"),
        (returns_a_number, "not yet: step(x, y) returns the loss, a tensor with one element; yours gave float"),
        (static_loss, "not yet: all losses are the same: a static output"),
        (only_the_example, "not yet: all losses are the same: a static output"),
        (into_the_example, "not yet: an input has changed"),
        (moved_by_the_warm_up, "not yet: the first loss is wrong already"),
        (no_warm_up, "not yet: the losses are wrong from step 3 on"),
        (never_steps, "not yet: the losses are wrong from step 2 on"),
        (moved_statistics, "not yet: all losses are right, but 1.running_mean is not"),
        (frozen_rate, "not yet: the losses are right until the rate changes"),
        (forgets_the_averages, "not yet: with a model that was trained for 2 steps before, the losses are wrong from"),
        (eager, "not yet: the results are right, but a step is 47 launches (eager: 47)"),
    ],
)
def test_captured_step(answer, says, verdict):
    assert verdict(answer, "captured_step").startswith(says)

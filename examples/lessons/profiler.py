"""The profiler: which operators take the time, and a trace to look at in Perfetto (ui.perfetto.dev) or TensorBoard."""

from torch import nn, optim
from torch.profiler import ProfilerActivity, profile, record_function, schedule
from torch.utils.data import DataLoader
from toy import device, network, samples

place = device()
model = network(width=512).to(place)
optimizer = optim.AdamW(model.parameters(), lr=0.003)
activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if place.type == "cuda" else [])

with profile(
    activities=activities, schedule=schedule(wait=1, warmup=2, active=5), record_shapes=True
) as seen:
    for step, (inputs, targets) in enumerate(DataLoader(samples(), batch_size=100)):
        with record_function("forward"):
            loss = nn.functional.mse_loss(model(inputs.to(place)), targets.to(place))
        with record_function("backward"):
            optimizer.zero_grad()
            loss.backward()
        with record_function("update"):
            optimizer.step()
        seen.step()
        if step == 7:
            break
print(seen.key_averages().table(sort_by=f"self_{place.type}_time_total", row_limit=8), flush=True)
seen.export_chrome_trace("trace.json")
print("the trace is in trace.json", flush=True)

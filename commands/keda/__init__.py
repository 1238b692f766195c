"""The scaler that KEDA asks how many consumers a subscription is worth: its contract, its answers,
and the server."""

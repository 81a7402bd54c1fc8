"""The demo: the main job of gpuload on real data, ``gpuload demo``; an example of its public interface."""

"""The strategies of torch, each a module with its `VARIANTS`; `training` trains a task under them."""

"""`torchrun ... -m preflight.train_smoke --strategy NAME`."""

# Nothing else here: this runs while the user's folder is still first on sys.path.
if __name__ == "__main__":
    from preflight.__main__ import end_interrupted, forget_current_folder, open_missing_descriptors

    forget_current_folder()
    open_missing_descriptors()
    try:
        from preflight.train_smoke.command import main

        main()
    except KeyboardInterrupt:
        end_interrupted()

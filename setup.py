"""checks/ and train_smoke/ lie beside preflight/ and are installed inside it. All else is in pyproject.toml."""

from setuptools import find_packages, setup

BESIDE = ("checks", "train_smoke")
beside = find_packages(include=[pattern for name in BESIDE for pattern in (name, f"{name}.*")])

setup(
    packages=[*find_packages(include=["preflight", "preflight.*"]), *(f"preflight.{name}" for name in beside)],
    package_dir={f"preflight.{name}": name for name in BESIDE},
)

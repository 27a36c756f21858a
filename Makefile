# Every target sets up .venv first, once.
.PHONY: run test test-slow test-all test-gpu lint fuzz pairs golden

run:        ## build, run and verify the first example
	./setup.sh ucc run examples/linear_gelu.ucu -s M=4096,N=4096,K=4096

test:       ## lint, types and the quick tests
	./setup.sh test

test-gpu:   ## the tests that need an NVIDIA GPU; fails where all are skipped
	./setup.sh test-gpu

test-slow:  ## the tests without a GPU that `make test` leaves out for time
	./setup.sh test-slow

test-all:   ## lint, types and all tests that need no GPU
	./setup.sh lint
	./setup.sh test-every

lint:       ## ruff and mypy alone
	./setup.sh lint

fuzz:       ## 50,000 mutated, drawn and enlarged programs through the front end
	./setup.sh python -m tests.fuzz.fuzz --count 50000 --seed 0

pairs:      ## a program for every pair of features, emulated on the host
	./setup.sh python -m tests.pairs.pairs

golden:     ## write the golden files anew; read the difference before you commit it
	./setup.sh python -m pytest -q -m "not gpu and not nvcc" tests/grammar tests/emit --update-golden

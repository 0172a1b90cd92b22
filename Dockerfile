# The course in a container: alone, or by repo2docker and Binder, which take a Dockerfile as it is. docs/where_to_run.md has
# the rest, and how to put JupyterHub on top.
#
#     docker build -t npugraph-course .
#     docker run --rm -p 8888:8888 npugraph-course      # then open the address that it prints
#
# TORCH_INDEX: address of PyTorch's CPU wheel index. Without it, pip's default PyTorch for x86-64 brings CUDA, several GB.
FROM debian:bookworm-slim

ARG NB_USER=learner
ARG NB_UID=1000
ARG TORCH_INDEX=
ENV HOME=/home/${NB_USER}

RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid ${NB_UID} ${NB_USER}

COPY --chown=${NB_UID} . ${HOME}/npugraph-course
USER ${NB_USER}
WORKDIR ${HOME}/npugraph-course

# `doctor` compiles the simulated device, so that nobody waits for it in class.
RUN make setup && make doctor

ENV PATH=${HOME}/npugraph-course/.venv/bin:${PATH}
EXPOSE 8888
# JupyterHub and Binder give a command of their own.
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--LabApp.default_url=/lab/tree/notebooks/index.ipynb"]

"""Stand-ins for kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and flanneld.

No package registry has these programs in all their versions, and a test of 36 minor releases cannot run them all. A stand-in is
given a version, reads its command line and its files as strictly as the real program of that version does (or more strictly: what
the real one ignores with a warning is a mistake of whoever wrote it), and then serves the ports by which the real one is looked at.
It is no Kubernetes: nothing is scheduled, proxied or run.

    tests/stand-ins/install DIRECTORY VERSION     the programs by their real names, VERSION like 1.28.9, 1.2.0-hyper or, for
                                                  flanneld, 0.20.2

Environment of a stand-in:

    HNA_STAND_IN_CHECK=1        read and check everything, print "ok", exit 0; nothing is served
    HNA_STAND_IN_ROOT=DIR       files are looked for below DIR
    HNA_STAND_IN_CONTROL=DIR    where it looks for orders, /run/heat-node-agent-stand-ins if not said: a file named as the program
                                which says "die [STATUS [WORDS]]" (ends at once with these words, and at each later start, until
                                the file is gone) or
                                "unhealthy" (health answers 500) or "record" (each request that writes becomes a line of its output:
                                "request: METHOD PATH NAME STATUS"); flannel.py has one more. SIGUSR1 ends it with status 1 at once,
                                SIGTERM ends it cleanly.

    tables.py      which flags and fields a version has, from lists taken of the real programs and their reference pages
    flags.py       command lines as pflag and Go's flag package read them, and what single values must look like
    files.py       certificates, keys, kubeconfigs, cloud configuration: what is named must be there and be good
    documents.py   KubeletConfiguration, KubeProxyConfiguration, KubeSchedulerConfiguration
    kubernetes.py  what each of the five programs refuses, by version, and on which ports it serves
    serve.py       ports and who listens there, registration of nodes
    service.py     what all of them serve: health; orders; notification
    tls.py         TLS of both sides, a request to the API
    api.py         kube-apiserver: who asks and what he may, nodes
    objects.py     the API's other objects: stored, and refused where the real one refuses
    etcd.py        the API's way to etcd
    signing.py     TLS bootstrap: a kubelet asks, the controller manager approves and signs
    flannel.py     flanneld: network configuration, leases, subnet.env
    backends.py    flanneld's routes and devices

A comment at each rule says where it is known from: [list] a list in lists/, [spec] the flag history that was put together from the
sources of each minor and the release notes, [tried] seen on the real program, [source] read in the source, [memory] from memory
of the source and of what administrators report, and not looked up again.
"""


class Refused(Exception):
    """What the real program would say on its way out, and its exit status."""

    def __init__(self, text: str, status: int = 1):
        self.status = status
        super().__init__(text)

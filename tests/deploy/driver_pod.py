"""The driver's pod as Spark makes it: ``python -m tests.deploy.driver_pod KEY=VALUE ...`` prints it as JSON.

Runs Spark's own code for a driver in Kubernetes (`KubernetesDriverBuilder`), with these settings and their pod
template. Connects to no cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from acker_client.spark.driver.session import local_session


def driver_pod(settings: Sequence[str], program: str) -> dict[str, Any]:
    """Return the pod of ``spark-submit --conf KEY=VALUE ... PROGRAM``, with the driver as its only main container."""
    with local_session("driver-pod") as spark:
        context: Any = spark.sparkContext
        jvm, gateway = context._jvm, context._gateway
        conf = jvm.org.apache.spark.SparkConf(False)
        for setting in settings:
            conf.set(*setting.split("=", 1))
        conf.set("spark.kubernetes.driver.pod.name", "orders-driver")
        conf.set("spark.kubernetes.executor.podNamePrefix", "orders")
        k8s, fabric8 = jvm.org.apache.spark.deploy.k8s, jvm.io.fabric8.kubernetes.client
        submission = k8s.KubernetesDriverConf(
            conf,
            "orders",
            k8s.submit.PythonMainAppResource(program),
            "org.apache.spark.deploy.PythonRunner",
            gateway.new_array(jvm.java.lang.String, 0),
            jvm.scala.Option.empty(),
            jvm.org.apache.spark.util.SystemClock(),
        )
        client = fabric8.KubernetesClientBuilder().build()
        made = k8s.submit.KubernetesDriverBuilder().buildFromFeatures(submission, client).pod()
        as_json = fabric8.utils.Serialization.asJson
        pod: dict[str, Any] = json.loads(as_json(made.pod()))
        pod["spec"]["containers"] = [json.loads(as_json(made.container()))]
        return pod


if __name__ == "__main__":
    print(json.dumps(driver_pod(sys.argv[1:-1], sys.argv[-1])))

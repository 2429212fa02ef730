"""Certificates, tokens and identities files, for tests of whole processes."""

import hashlib
import json
import subprocess

from log_waits import wait_for_log
from system_support import SystemTest


class AccessTest(SystemTest):
    """A test with a folder of certificates, tokens and identities files."""

    def setUp(self):
        super().setUp()
        self.access = self.folder / "access"
        self.access.mkdir()
        self.authority()

    def authority(self):
        self.openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                     "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")

    def openssl(self, *arguments):
        subprocess.run(["openssl", *arguments], cwd=self.access, check=True, capture_output=True)

    def certificate(self, name):
        (self.access / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:hearth-worker\n")
        self.openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                     "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        self.openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-CAcreateserial", "-extfile", "san", "-out", f"{name}.pem")

    def by_token(self, name, role, **more):
        token = f"token-of-{name}"
        (self.access / f"{name}.token").write_text(token + "\n")
        return {"name": name, "role": role,
                "token_sha256": hashlib.sha256(token.encode()).hexdigest(), **more}

    def identities(self, file, **content):
        (self.access / file).write_text(json.dumps(content))

    def served_by(self, name):
        return ["--tls-cert", self.access / f"{name}.pem", "--tls-key",
                self.access / f"{name}.key", "--tls-client-ca", self.access / "ca.pem"]

    def who(self, name):
        return ["--tls-ca", self.access / "ca.pem", "--token-file", self.access / f"{name}.token"]

    @staticmethod
    def logged_tenants(process, calls):
        """Waits until the debug log (JSON) has the calls with these ids; returns {id: tenant}."""
        def found(text):
            lines = [json.loads(line) for line in text.splitlines(keepends=True)
                     if line.endswith("\n")]
            tenants = {line["id"]: line["tenant"] for line in lines if line.get("id") in calls}
            return len(tenants) == len(calls) and tenants
        return wait_for_log(process, found)

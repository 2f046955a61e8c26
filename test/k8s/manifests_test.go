package k8s

// kustomization is the overlay that is applied; %s are namespace, overlay to try, and domain.
const kustomization = `apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: %s
resources:
  - ../%s
  - to-outside-world.yaml
configMapGenerator:
  - name: tendril
    behavior: merge
    literals:
      - NGIT_DOMAIN=%s
      - NGIT_ALLOW_PRIVATE_NETWORKS=true
images:
  - name: docker.io/local/tendril
    newTag: k8s-test
  - name: docker.io/local/nats
    newTag: k8s-test
`

// toOutsideWorld lets the services connect to the pods of the namespace %s, whose addresses are
// private ones.
const toOutsideWorld = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: to-outside-world
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: tendril
    matchExpressions:
      - key: app.kubernetes.io/component
        operator: In
        values: [relayconn, purgatory]
  policyTypes: [Egress]
  egress:
    - to:
        - namespaceSelector:
            matchLabels:
              kubernetes.io/metadata.name: %s
`

// outsideWorld is the pod of relays, git server and users; arguments are namespace, image, domain
// of the Tendril under test (which is its Service), and number of relays.
const outsideWorld = `apiVersion: v1
kind: Namespace
metadata:
  name: %[1]s
---
apiVersion: v1
kind: Service
metadata:
  name: world
  namespace: %[1]s
spec:
  clusterIP: None
  selector:
    app: world
  ports:
    - name: control
      port: 8080
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: world
  namespace: %[1]s
spec:
  strategy:
    type: Recreate
  selector:
    matchLabels:
      app: world
  template:
    metadata:
      labels:
        app: world
        app.kubernetes.io/component: world
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
      containers:
        - name: world
          image: %[2]s
          imagePullPolicy: IfNotPresent
          args: [-host=world.%[1]s.svc, "-gateway=http://%[3]s", "-domain=%[3]s", -relays=%[4]d]
          ports:
            - name: control
              containerPort: 8080
          readinessProbe:
            httpGet:
              path: /healthz
              port: control
            periodSeconds: 2
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: tmp
          emptyDir: {}
`

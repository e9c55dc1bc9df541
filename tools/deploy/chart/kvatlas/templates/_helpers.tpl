{{/* Names, labels, flags and parts of pods that the components share. */}}

{{- define "kvatlas.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "kvatlas.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvatlas.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvatlas.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of pods: dict "root" $ "component" "leaf" ["cell" NAME]. */}}
{{- define "kvatlas.selector" -}}
app.kubernetes.io/name: {{ include "kvatlas.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .cell }}
kvatlas-cell: {{ . }}
{{- end }}
{{- end -}}

{{- define "kvatlas.labels" -}}
{{ include "kvatlas.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kvatlas.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvatlas.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kvatlas.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* A Service's name within the cluster: dict "root" $ "service" NAME. */}}
{{- define "kvatlas.host" -}}
{{- printf "%s.%s.svc.%s" .service .root.Release.Namespace .root.Values.clusterDomain -}}
{{- end -}}

{{/* The pod's address, as it stands before a port. */}}
{{- define "kvatlas.podIp" -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" (hasPrefix "[" .Values.listenHost) -}}
{{- end -}}

{{/* --engine_addresses: private ranges, and what `engineAddresses` adds. Empty: the default. */}}
{{- define "kvatlas.engineAddresses" -}}
{{- with .Values.engineAddresses -}}
{{- join "," (concat (list "127.0.0.0/8" "::1/128" "10.0.0.0/8" "172.16.0.0/12" "192.168.0.0/16" "fc00::/7") .) -}}
{{- end -}}
{{- end -}}

{{/* Cells with leaves of their own, a JSON list: none with serve.enabled. */}}
{{- define "kvatlas.cells" -}}
{{- if .Values.serve.enabled -}}[]{{- else -}}{{- toJson .Values.leaf.cells -}}{{- end -}}
{{- end -}}

{{/* "true": the leaf of the first cell, or `kvatlas serve`, finds the pods of gaie.selector itself. */}}
{{- define "kvatlas.findsEngines" -}}
{{- $said := ternary .Values.serve.engines (concat .Values.engines (default list (first .Values.leaf.cells).workers)) .Values.serve.enabled -}}
{{- if and .Values.gaie.enabled .Values.gaie.findEngines (not $said) -}}true{{- end -}}
{{- end -}}

{{/* The pods of gaie.selector and their ports, as --engine takes them: root. */}}
{{- define "kvatlas.servedPods" -}}
{{- $gaie := .Values.gaie -}}
{{- $labels := list -}}
{{- range $key, $value := $gaie.selector }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- $ports := list -}}
{{- range $gaie.targetPorts }}{{ $ports = append $ports (int . | toString) }}{{ end -}}
{{- printf "k8s:%s/%s;http=%s;events=%d" .Release.Namespace (join "&" $labels) (join "|" $ports) (int $gaie.eventsPort) -}}
{{- if $gaie.replayPort }}{{ printf ";replay=%d" (int $gaie.replayPort) }}{{ end -}}
{{- end -}}

{{/* As --workers takes them: root. */}}
{{- define "kvatlas.foundEngines" -}}
{{- printf "%s;model=%s;block_size=auto" (include "kvatlas.servedPods" .) (required "gaie.findEngines needs gaie.model: what the pods of gaie.selector serve" .Values.gaie.model) -}}
{{- end -}}

{{/* Ports of engines that leaves and proxies connect to, a JSON list: root. */}}
{{- define "kvatlas.enginePorts" -}}
{{- $root := . -}}
{{- $ports := list -}}
{{- range .Values.networkPolicy.enginePorts }}{{ $ports = append $ports (int .) }}{{ end -}}
{{- if .Values.gaie.enabled -}}
{{- range $rank, $port := .Values.gaie.targetPorts -}}
{{- $ports = append $ports (int $port) -}}
{{- if eq (include "kvatlas.findsEngines" $root) "true" -}}
{{- $ports = append $ports (add (int $root.Values.gaie.eventsPort) $rank | int) -}}
{{- if $root.Values.gaie.replayPort }}{{ $ports = append $ports (add (int $root.Values.gaie.replayPort) $rank | int) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $ports) -}}
{{- end -}}

{{- define "kvatlas.scheme" -}}
{{- ternary "https" "http" .Values.tls.enabled -}}
{{- end -}}

{{/* Where a flag looks for the pods of a Service: dict "root" $ "service" NAME "port" PORT. */}}
{{- define "kvatlas.place" -}}
{{- if eq .root.Values.discovery "redis" -}}
redis://@/etc/kvatlas/redis/url
{{- else if eq .root.Values.discovery "k8s" -}}
{{- printf "k8s:%s.%s:%v" .service .root.Release.Namespace .port -}}
{{- else -}}
{{- printf "dns:%s:%v" (include "kvatlas.host" .) .port -}}
{{- end -}}
{{- end -}}

{{/* One argument a flag, of a map of them: numbers without exponents, lists with commas. */}}
{{- define "kvatlas.args" -}}
{{- range $name, $value := . }}
{{- if kindIs "slice" $value }}
- {{ printf "--%s=%s" $name (join "," $value) | quote }}
{{- else if and (kindIs "float64" $value) (eq (floor $value) $value) }}
- {{ printf "--%s=%d" $name (int64 $value) | quote }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Flags of every process: dict "root" $ "stopDeadlineSeconds" N ["tlsDir" "DIR/"]. */}}
{{- define "kvatlas.commonFlags" -}}
stop_delay: {{ .root.Values.stopDelaySeconds }}s
stop_deadline: {{ .stopDeadlineSeconds }}s
{{- if .root.Values.tls.enabled }}
tls_cert: /etc/kvatlas/tls/{{ .tlsDir }}tls.crt
tls_key: /etc/kvatlas/tls/{{ .tlsDir }}tls.key
tls_ca: /etc/kvatlas/tls/{{ .tlsDir }}ca.crt
access_policy: /etc/kvatlas/policy/policy.json
{{- if .root.Values.tls.tokensSecret }}
access_tokens: /etc/kvatlas/tokens/tokens
{{- end }}
{{- else }}
insecure: true
{{- end }}
{{- end -}}

{{- define "kvatlas.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kvatlas.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kvatlas.env" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end -}}

{{/* What tells that a process runs: dict "root" $ "port" NAME. Paths of health ask for no certificate. */}}
{{- define "kvatlas.live" -}}
httpGet: {path: {{ .root.Values.probes.livePath }}, port: {{ .port }}, scheme: {{ upper (include "kvatlas.scheme" .root) }}}
{{- end -}}

{{/* By the port "http": dict "root" $. A process that loads is live; a leaf that restores a large checkpoint has five minutes. */}}
{{- define "kvatlas.probes" -}}
{{- $live := include "kvatlas.live" (dict "root" .root "port" "http") -}}
startupProbe:
  {{ $live }}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  {{ $live }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: {{ .root.Values.probes.readyPath }}, port: http, scheme: {{ upper (include "kvatlas.scheme" .root) }}}
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 2
{{- end -}}

{{/* What all pods of ours have, below spec: dict "root" $ "values" COMPONENT "component" NAME ["cell" NAME]. */}}
{{- define "kvatlas.podSpec" -}}
{{- $root := .root -}}
serviceAccountName: {{ include "kvatlas.serviceAccount" $root }}
{{- $finds := and (eq .component (ternary "frontend" "leaf" $root.Values.serve.enabled)) (eq (include "kvatlas.findsEngines" $root) "true") }}
automountServiceAccountToken: {{ or $finds (eq $root.Values.discovery "k8s") }}
enableServiceLinks: false
# --stop_delay, --stop_deadline, and time for a last checkpoint.
terminationGracePeriodSeconds: {{ add $root.Values.stopDelaySeconds .values.stopDeadlineSeconds 10 }}
securityContext:
  {{- include "kvatlas.podSecurityContext" $root | nindent 2 }}
dnsConfig:
  options: [{name: ndots, value: "2"}]
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $root.Values.topologySpread.enabled }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ $root.Values.topologySpread.topologyKey }}
    whenUnsatisfiable: {{ $root.Values.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "kvatlas.selector" . | nindent 8 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Mounts that flags name: dict "root" $ "values" COMPONENT. */}}
{{- define "kvatlas.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /etc/kvatlas/tls, readOnly: true}
- {name: policy, mountPath: /etc/kvatlas/policy, readOnly: true}
{{- if .root.Values.tls.tokensSecret }}
- {name: tokens, mountPath: /etc/kvatlas/tokens, readOnly: true}
{{- end }}
{{- end }}
{{- if .root.Values.redis.secret }}
- {name: redis, mountPath: /etc/kvatlas/redis, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Their volumes: dict "root" $ "values" COMPONENT "secrets" (list (dict "name" SECRET "dir" "" or "DIR/")). */}}
{{- define "kvatlas.volumes" -}}
{{- $root := .root -}}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- if $root.Values.tls.enabled }}
- name: tls
  projected:
    defaultMode: 0440
    sources:
      {{- range .secrets }}
      - secret:
          name: {{ .name }}
          optional: {{ ne .dir "" }}
          items:
            - {key: tls.crt, path: {{ .dir }}tls.crt}
            - {key: tls.key, path: {{ .dir }}tls.key}
            - {key: ca.crt, path: {{ .dir }}ca.crt}
      {{- end }}
- name: policy
  configMap: {name: {{ include "kvatlas.fullname" $root }}-policy}
{{- with $root.Values.tls.tokensSecret }}
- name: tokens
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- with $root.Values.redis.secret }}
- name: redis
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - {key: {{ $root.Values.redis.key }}, path: url}
      {{- range $root.Values.redis.files }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Egress of all: names are resolved, and what discovery asks. */}}
{{- define "kvatlas.egress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- if eq .Values.discovery "k8s" }}
- ports:
    - {port: 443, protocol: TCP}
    - {port: 6443, protocol: TCP}
{{- end }}
{{- if .Values.redis.secret }}
- ports:
    - {port: 6379, protocol: TCP}
  {{- with .Values.networkPolicy.redis }}
  to:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

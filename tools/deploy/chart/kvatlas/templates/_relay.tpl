{{/*
A relay beside an engine: what the engine says over ZeroMQ on loopback goes to the leaves of its cell, without token ids. For the
initContainers of a pod (a sidecar: restartPolicy Always), with "kvatlas.relayVolumes" among its volumes. In another chart that
depends on this one, "root" is .Subcharts.kvatlas.

  initContainers:
    {{- include "kvatlas.relay" (dict "root" . "cell" "a" "model" "llama-70b" "blockSize" 16 "port" 8000) | nindent 4 }}
  volumes:
    {{- include "kvatlas.relayVolumes" (dict "root" . "cell" "a") | nindent 4 }}

cell, model, port (HTTP of the engine) are required; blockSize (16), eventsPort (5557), replayPort (5558, 0: none), engineType (none),
labels (a map) are not.
*/}}
{{- define "kvatlas.relay" -}}
{{- $root := .root -}}
{{- $relay := $root.Values.relay -}}
{{- $leaf := printf "%s-leaf-%s" (include "kvatlas.fullname" $root) (required "kvatlas.relay: cell" .cell) -}}
{{- $worker := printf "$(POD_NAME)=tcp://127.0.0.1:%v" (default 5557 .eventsPort) -}}
{{- $replay := 5558 -}}
{{- if hasKey . "replayPort" }}{{ $replay = int .replayPort }}{{ end -}}
{{- if $replay }}{{ $worker = printf "%s;replay=tcp://127.0.0.1:%v" $worker $replay }}{{ end -}}
{{- with .engineType }}{{ $worker = printf "%s;type=%s" $worker . }}{{ end -}}
{{- $labels := list (printf "url=http://%s:%v" (include "kvatlas.podIp" $root) (required "kvatlas.relay: port" .port)) -}}
{{- range $key, $value := default dict .labels }}{{ $labels = append $labels (printf "%s=%s" $key $value) }}{{ end -}}
{{- $flags := dict
  "http" (printf "%s:8093" (ternary $root.Values.listenHost "127.0.0.1" $relay.exposeHttp))
  "cell" (printf "%s%s" $root.Values.leaf.cellPrefix .cell)
  "leaves" (include "kvatlas.place" (dict "root" $root "service" $leaf "port" 7410))
  "workers" $worker
  "model_name" (required "kvatlas.relay: model" .model)
  "block_size" (int (default 16 .blockSize))
  "labels" $labels -}}
{{- with include "kvatlas.engineAddresses" $root }}{{ $_ := set $flags "engine_addresses" . }}{{ end -}}
{{- $common := include "kvatlas.commonFlags" (dict "root" $root "stopDeadlineSeconds" $relay.stopDeadlineSeconds "tlsDir" "") | fromYaml -}}
{{- /* Nothing is balanced over a relay: it ends when its engine has. */ -}}
{{- $_ := unset $common "stop_delay" -}}
{{- if not $relay.exposeHttp }}{{ $_ := unset $common "insecure" }}{{ end -}}
{{- $flags = mustMergeOverwrite $flags $common (deepCopy $root.Values.flags) (deepCopy $relay.flags) -}}
- name: kvatlas-relay
  image: {{ include "kvatlas.image" $root }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  restartPolicy: Always
  command: [kvatlas-relay]
  args:
    {{- include "kvatlas.args" $flags | trim | nindent 4 }}
  env:
    {{- include "kvatlas.env" $root | nindent 4 }}
  {{- if $relay.exposeHttp }}
  ports:
    - {name: kvatlas-relay, containerPort: 8093}
  startupProbe:
    {{ include "kvatlas.live" (dict "root" $root "port" "kvatlas-relay") }}
    periodSeconds: 2
    failureThreshold: 30
  livenessProbe:
    {{ include "kvatlas.live" (dict "root" $root "port" "kvatlas-relay") }}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  {{- else if not $root.Values.tls.enabled }}
  livenessProbe:
    exec:
      command: [kvatlas, streams, "--relay=127.0.0.1:8093"]
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 4
  {{- end }}
  securityContext:
    {{- include "kvatlas.securityContext" $root | nindent 4 }}
  resources:
    {{- toYaml $relay.resources | nindent 4 }}
  volumeMounts:
    {{- $mounts := include "kvatlas.mounts" (dict "root" $root "values" dict) }}
    {{- $mounts | replace "name: " "name: kvatlas-" | nindent 4 }}
{{- end -}}

{{- define "kvatlas.relayVolumes" -}}
{{- $secret := printf "%s-relay-%s-tls" (include "kvatlas.fullname" .root) .cell -}}
{{- $volumes := include "kvatlas.volumes" (dict "root" .root "values" dict "secrets" (list (dict "name" $secret "dir" ""))) -}}
{{- range $volume := $volumes | fromYamlArray }}
{{- $_ := set $volume "name" (printf "kvatlas-%s" $volume.name) }}
- {{ toYaml $volume | nindent 2 | trim }}
{{- end }}
{{- end -}}

import java.util.List;
import java.util.Map;

import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.node.InternalSettingsPreparer;
import org.elasticsearch.node.Node;
import org.elasticsearch.transport.Netty4Plugin;

/**
 * One node of Elasticsearch 7 on loopback, from jars alone: no distribution, so no security and no scripts.
 * Arguments: its folder, the port of its REST interface, the port between nodes.
 */
public class Elasticsearch7Node extends Node {
    private Elasticsearch7Node(Settings settings) {
        // The protected constructor is the only one that takes plugins without a folder of a distribution.
        super(
            InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), null, () -> "peer"),
            List.of(Netty4Plugin.class),
            true);
    }

    public static void main(String[] arguments) throws Exception {
        Settings settings = Settings.builder()
            .put("path.home", arguments[0])
            .put("path.repo", arguments[0] + "/snapshots")
            .put("http.port", arguments[1])
            .put("transport.port", arguments[2])
            .put("network.host", "127.0.0.1")
            .put("http.type", "netty4")
            .put("transport.type", "netty4")
            .put("cluster.name", "peer")
            .put("discovery.type", "single-node")
            // Or it creates no index on a disk that is almost full.
            .put("cluster.routing.allocation.disk.threshold_enabled", false)
            .build();
        new Elasticsearch7Node(settings).start();
        Thread.currentThread().join();
    }
}
